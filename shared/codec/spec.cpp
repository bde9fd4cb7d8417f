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

constexpr float clip_max = 256;  // Of a block of 65,536 values none is farther out.

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

MethodResult parse_bf16(const Parts& parts) {
  FL_CHECK(check_plain(parts));
  return make_bf16();
}

MethodResult parse_kbit(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 "kbit wants its number of bits here, such as kbit:8");
  }
  KbitSettings settings{};
  FL_TRY(settings.bits, parse_number(parts.whole, *parts.argument, "the bits of kbit", 2, 8));
  for (const auto& [key, value] : parts.settings) {
    if (key == "scale") {
      if (value != "tensor" && value != "channel") {
        return wrong(parts.whole, value, "scale is tensor or channel");
      }
      settings.scale = value == "channel" ? KbitScale::channel : KbitScale::tensor;
    } else if (key == "mode") {
      if (value != "symmetric" && value != "affine") {
        return wrong(parts.whole, value, "mode is symmetric or affine");
      }
      settings.mode = value == "affine" ? KbitMode::affine : KbitMode::symmetric;
    } else {
      return wrong(parts.whole, key, "kbit has the settings scale and mode");
    }
  }
  return make_kbit(settings);
}

MethodResult parse_terngrad(const Parts& parts) {
  if (parts.argument) return wrong(parts.whole, *parts.argument, "terngrad takes no argument");
  TerngradSettings settings;
  for (const auto& [key, value] : parts.settings) {
    if (key != "clip") return wrong(parts.whole, key, "terngrad has the setting clip");
    const char* const end = value.data() + value.size();
    const auto [stop, failed] = std::from_chars(value.data(), end, settings.clip);
    // Written so that NaN fails too.
    if (failed != std::errc{} || stop != end || value.starts_with('-') ||
        !(settings.clip <= clip_max)) {
      return wrong(parts.whole, value, fmt::format("clip must be a number from 0 to {}", clip_max));
    }
  }
  return make_terngrad(settings);
}

MethodResult parse_sign(const Parts& parts) {
  FL_CHECK(check_plain(parts));
  return make_sign();
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
    Row{{"bf16", "bf16", "bfloat16, 8 bits of precision with the range of fp32", "bf16"},
        parse_bf16},
    Row{{"kbit", "kbit:B[,scale=tensor|channel][,mode=symmetric|affine]",
         "stochastic rounding to B bits, 2 to 8, a scale for each tensor or row; unbiased",
         "kbit:8"},
        parse_kbit},
    Row{{"terngrad", "terngrad[,clip=2.5]",
         "-scale, 0 or scale, clipped at so many sigma; unbiased with clip=0", "terngrad"},
        parse_terngrad},
    Row{{"sign", "sign", "1 bit a value: sign times mean magnitude; biased, use sign+ef", "sign"},
        parse_sign},
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
