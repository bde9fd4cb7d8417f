// The table of codecs and the parser of their specs.
#include "shared/codec/codec.hpp"

#include "shared/codec/payload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace fl {

namespace {

// A spec taken apart. All parts are views into `whole`, so that errors can point at them.
struct Parts {
  std::string_view whole;
  std::string_view name;
  std::optional<std::string_view> argument;
  std::vector<std::pair<std::string_view, std::string_view>> settings;
};

// The spec on a line of its own, and under it a caret where `part` begins.
Error wrong(std::string_view whole, std::string_view part, std::string_view what) {
  std::string shown(whole.substr(0, spec_bytes_max));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  const auto column = static_cast<std::size_t>(part.data() - whole.data());
  return {Errc::invalid_input,
          fmt::format("codec: {}\n  {}\n  {}^", what, shown, std::string(column, ' '))};
}

Result<std::int32_t> parse_number(std::string_view whole, std::string_view text,
                                  std::string_view what, std::int32_t least, std::int32_t most) {
  std::int32_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{} || end != text.data() + text.size() || number < least ||
      number > most) {
    return wrong(whole, text, fmt::format("{} must be a number from {} to {}", what, least, most));
  }
  return number;
}

using MethodResult = Result<std::unique_ptr<const Method>>;

Result<void> check_plain(const Parts& parts) {
  if (parts.argument) {
    return wrong(parts.whole, *parts.argument, fmt::format("{} takes no argument", parts.name));
  }
  if (!parts.settings.empty()) {
    return wrong(parts.whole, parts.settings.front().first,
                 fmt::format("{} has no settings", parts.name));
  }
  return {};
}

MethodResult parse_none(const Parts& parts) {
  FL_CHECK(check_plain(parts));
  return make_fp32();
}

MethodResult parse_fp16(const Parts& parts) {
  FL_CHECK(check_plain(parts));
  return make_fp16();
}

MethodResult parse_qsgd(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 "qsgd wants its number of levels here, such as qsgd:127");
  }
  QsgdSettings settings{};
  FL_TRY(settings.levels,
         parse_number(parts.whole, *parts.argument, "the levels of qsgd", 1, 32767));
  for (const auto& [key, value] : parts.settings) {
    if (key == "bucket") {
      FL_TRY(const std::int32_t bucket,
             parse_number(parts.whole, value, "bucket", 1, block_elements_max));
      settings.bucket = static_cast<std::uint32_t>(bucket);
    } else if (key == "norm") {
      if (value != "max" && value != "l2") return wrong(parts.whole, value, "norm is max or l2");
      settings.norm = value == "l2" ? QsgdNorm::l2 : QsgdNorm::max;
    } else {
      return wrong(parts.whole, key, "qsgd has the settings bucket and norm");
    }
  }
  return make_qsgd(settings);
}

struct Row {
  CodecRow shown;
  MethodResult (*parse)(const Parts&);
};

constexpr std::array rows = {
    Row{{"none", "none", "fp32 as it is", "none"}, parse_none},
    Row{{"fp16", "fp16", "half precision, |x| up to 65504", "fp16"}, parse_fp16},
    Row{{"qsgd", "qsgd:S[,bucket=512][,norm=max|l2]",
         "stochastic rounding to S levels of each sign, unbiased; S = 127 is 8 bits a value",
         "qsgd:127"},
        parse_qsgd},
};

// Cuts `text` at the first `mark`: what stands before, and what stands after if there is a mark.
std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

// Everything but the "+ef".
Result<Parts> split(std::string_view whole, std::string_view body) {
  auto [head, rest] = cut(body, ',');
  Parts parts{.whole = whole, .name = {}, .argument = {}, .settings = {}};
  std::tie(parts.name, parts.argument) = cut(head, ':');
  while (rest) {
    const auto [setting, next] = cut(*rest, ',');
    const auto [key, value] = cut(setting, '=');
    if (!value) return wrong(whole, setting, "a setting looks like key=value");
    for (const auto& earlier : parts.settings) {
      if (earlier.first == key) return wrong(whole, key, fmt::format("{} is set twice", key));
    }
    parts.settings.emplace_back(key, *value);
    rest = next;
  }
  return parts;
}

}  // namespace

Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec) {
  if (spec.size() > spec_bytes_max) {
    return Error(Errc::invalid_input,
                 fmt::format("codec: a spec of {} bytes, at most {} are allowed", spec.size(),
                             spec_bytes_max));
  }
  const auto [body, suffix] = cut(spec, '+');
  if (suffix && *suffix != "ef") return wrong(spec, *suffix, "after + there can only be ef");
  FL_TRY(const Parts parts, split(spec, body));
  for (const Row& row : rows) {
    if (row.shown.name != parts.name) continue;
    FL_TRY(auto method, row.parse(parts));
    return std::make_shared<const Codec>(std::move(method), suffix.has_value());
  }
  std::string names;
  for (const Row& row : rows) names += fmt::format(" {}", row.shown.name);
  return wrong(spec, parts.name, fmt::format("there is no such codec; there are:{}", names));
}

std::span<const CodecRow> codec_rows() {
  static const auto shown = [] {
    std::array<CodecRow, rows.size()> out;
    std::ranges::transform(rows, out.begin(), &Row::shown);
    return out;
  }();
  return shown;
}

}  // namespace fl
