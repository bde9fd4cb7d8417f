// The table of codecs and the parser of their specs.
#include "shared/codec/codec.hpp"

#include "shared/codec/low_rank.hpp"
#include "shared/codec/payload.hpp"
#include "shared/codec/warm_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace fl {

namespace {

struct WarmUp {
  std::string_view from;
  std::uint32_t over;
};

// A spec taken apart. All parts are views into `whole`, so that errors can point at them.
struct Parts {
  std::string_view whole;
  std::string_view name;
  std::optional<std::string_view> argument;
  std::vector<std::pair<std::string_view, std::string_view>> settings;
  std::optional<WarmUp> warm_up;  // No setting any more.
  std::uint32_t round = warmed_up;
  bool error_feedback = false;  // Of the whole codec.
};

bool is_printable(char c) { return c > ' ' && c <= '~'; }

// The spec on a line of its own, and under it a caret where `part` begins.
Error wrong(std::string_view whole, std::string_view part, std::string_view what) {
  std::string shown(whole.substr(0, spec_bytes_max));
  std::ranges::replace_if(
      shown, [](char c) { return c != ' ' && !is_printable(c); }, '?');
  const auto column = static_cast<std::size_t>(part.data() - whole.data());
  return {Errc::invalid_input,
          fmt::format("codec: {}\n  {}\n  {}^", what, shown, std::string(column, ' '))};
}

// Cuts `text` at the first `mark`: what stands before, and what stands after if there is a mark.
std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
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

constexpr std::int32_t rounds_max = 1'000'000;  // Of a warm-up, and before a late start.
constexpr float clip_max = 256;                 // Of a block of 65,536 values none is farther out.
// `what` says which numbers are allowed; is_allowed is asked about those that can be read.
template <class Number, class IsAllowed>
Result<Number> parse_real(std::string_view whole, std::string_view text, std::string_view what,
                          const IsAllowed& is_allowed) {
  Number number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{} || end != text.data() + text.size() || !is_allowed(number)) {
    return wrong(whole, text, what);
  }
  return number;
}

// The argument in parts.round; parse_one(text) reads it and the number that it comes from.
template <class ParseOne>
auto parse_argument(const Parts& parts, const ParseOne& parse_one) -> decltype(parse_one("")) {
  FL_TRY(const auto last, parse_one(*parts.argument));
  if (!parts.warm_up) return last;
  FL_TRY(const auto first, parse_one(parts.warm_up->from));
  return warm_up(first, last, parts.round, parts.warm_up->over);
}

Result<std::int32_t> parse_whole_argument(const Parts& parts, std::string_view what,
                                          std::int32_t least, std::int32_t most) {
  return parse_argument(parts, [&](std::string_view text) {
    return parse_number(parts.whole, text, what, least, most);
  });
}

using MethodResult = Result<std::unique_ptr<const Method>>;
using SelectorResult = Result<std::unique_ptr<const Selector>>;

Result<void> check_no_settings(const Parts& parts) {
  if (parts.settings.empty()) return {};
  return wrong(parts.whole, parts.settings.front().first,
               fmt::format("{} has no settings of its own", parts.name));
}

Result<void> check_plain(const Parts& parts) {
  if (parts.argument) {
    return wrong(parts.whole, *parts.argument, fmt::format("{} takes no argument", parts.name));
  }
  return check_no_settings(parts);
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
  FL_TRY(settings.levels, parse_whole_argument(parts, "the levels of qsgd", 1, 32767));
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
  settings.has_feedback = parts.error_feedback;
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
  FL_TRY(settings.bits, parse_whole_argument(parts, "the bits of kbit", 2, 8));
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
  settings.has_feedback = parts.error_feedback;
  return make_kbit(settings);
}

MethodResult parse_terngrad(const Parts& parts) {
  if (parts.argument) return wrong(parts.whole, *parts.argument, "terngrad takes no argument");
  TerngradSettings settings;
  for (const auto& [key, value] : parts.settings) {
    if (key != "clip") return wrong(parts.whole, key, "terngrad has the setting clip");
    FL_TRY(settings.clip,
           parse_real<float>(parts.whole, value,
                             fmt::format("clip must be a number from 0 to {}", clip_max),
                             [](float c) { return !std::signbit(c) && c <= clip_max; }));
  }
  settings.has_feedback = parts.error_feedback;
  return make_terngrad(settings);
}

MethodResult parse_sign(const Parts& parts) {
  FL_CHECK(check_plain(parts));
  return make_sign();
}

MethodResult parse_eden(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 "eden wants its number of bits here, such as eden:2");
  }
  FL_TRY(const std::int32_t bits, parse_whole_argument(parts, "the bits of eden", 1, 4));
  FL_CHECK(check_no_settings(parts));
  return make_eden(bits);
}

MethodResult parse_ecuq(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 "ecuq wants its bits a value here, such as ecuq:2");
  }
  EcuqSettings settings{};
  FL_TRY(settings.rate, parse_argument(parts, [&](std::string_view rate) {
           if (rate.ends_with("bit")) rate.remove_suffix(3);
           return parse_real<double>(
               parts.whole, rate,
               fmt::format("the bits of ecuq are a number from {} to {}", ecuq_rate_min,
                           ecuq_rate_max),
               [](double r) { return r >= ecuq_rate_min && r <= ecuq_rate_max; });
         }));
  settings.mode_otherwise = parts.error_feedback ? EcuqMode::centroid : EcuqMode::dither;
  settings.mode = settings.mode_otherwise;
  for (const auto& [key, value] : parts.settings) {
    if (key != "mode") return wrong(parts.whole, key, "ecuq has the setting mode");
    if (value != "dither" && value != "centroid") {
      return wrong(parts.whole, value, "mode is dither or centroid");
    }
    settings.mode = value == "dither" ? EcuqMode::dither : EcuqMode::centroid;
  }
  return make_ecuq(settings);
}

// RANK or RANK@ROUND: before that round matrices go dense, and a warm-up is counted from there.
MethodResult parse_low_rank(Parts parts,
                            std::unique_ptr<const Method> (*make)(const LowRankSettings&)) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 fmt::format("{0} wants its rank here, such as {0}:2", parts.name));
  }
  const auto [rank, start] = cut(*parts.argument, '@');
  parts.argument = rank;
  bool is_dense = false;
  if (start) {
    FL_TRY(const std::int32_t first,
           parse_number(parts.whole, *start, "the round to start at", 1, rounds_max));
    is_dense = parts.round < static_cast<std::uint32_t>(first);
    parts.round = is_dense ? 1 : parts.round - static_cast<std::uint32_t>(first) + 1;
  }
  LowRankSettings settings{};
  FL_TRY(settings.rank,
         parse_whole_argument(parts, fmt::format("the rank of {}", parts.name), 1, rank_max));
  for (const auto& [key, value] : parts.settings) {
    if (key != "min_ratio") {
      return wrong(parts.whole, key, fmt::format("{} has the setting min_ratio", parts.name));
    }
    FL_TRY(settings.min_ratio,
           parse_real<double>(parts.whole, value, "min_ratio must be a number from 1 to 1000000",
                              [](double r) { return r >= 1 && r <= 1e6; }));
  }
  settings.has_feedback = parts.error_feedback;
  if (is_dense) return make_fp32();
  return make(settings);
}

MethodResult parse_powersgd(const Parts& parts) { return parse_low_rank(parts, make_powersgd); }

MethodResult parse_gradzip(const Parts& parts) { return parse_low_rank(parts, make_gradzip); }

MethodResult parse_countsketch(const Parts& parts) {
  const std::string_view size = parts.argument.value_or(parts.name.substr(parts.name.size()));
  const std::size_t times = size.find('x');
  if (times == std::string_view::npos) {
    return wrong(parts.whole, size,
                 "countsketch wants ROWSxCOLUMNS here, such as countsketch:5x4000");
  }
  CountsketchSettings settings{};
  FL_TRY(settings.rows, parse_number(parts.whole, size.substr(0, times), "the rows of countsketch",
                                     3, sketch_rows_max));
  if (settings.rows % 2 == 0) return wrong(parts.whole, size, "the rows of countsketch are odd");
  FL_TRY(settings.columns,
         parse_number(parts.whole, size.substr(times + 1), "the columns of so many rows", 8,
                      sketch_cells_max / settings.rows));
  settings.k = CountsketchSettings::k_otherwise(settings.columns);
  for (const auto& [key, value] : parts.settings) {
    if (key != "k") return wrong(parts.whole, key, "countsketch has the setting k");
    FL_TRY(settings.k, parse_number(parts.whole, value, "k", 1, settings.columns));
  }
  return make_countsketch(settings);
}

Result<double> parse_fraction(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 fmt::format("{0} wants the fraction to send here, such as {0}:0.01", parts.name));
  }
  const auto what = fmt::format("the fraction of {} is above 0 and at most 1", parts.name);
  return parse_argument(parts, [&](std::string_view text) {
    return parse_real<double>(parts.whole, text, what, [](double f) { return f > 0 && f <= 1; });
  });
}

SelectorResult parse_topk(const Parts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  auto scope = TopkScope::layer;
  for (const auto& [key, value] : parts.settings) {
    if (key != "scope") {
      return wrong(parts.whole, key, "topk has the settings scope and dense_below");
    }
    if (value != "layer" && value != "global") {
      return wrong(parts.whole, value, "scope is layer or global");
    }
    if (value == "global") scope = TopkScope::global;
  }
  return make_topk(fraction, scope);
}

SelectorResult parse_randk(const Parts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  FL_CHECK(check_no_settings(parts));
  return make_randk(fraction,
                    parts.error_feedback ? RandkScale::contracting : RandkScale::unbiased);
}

SelectorResult parse_threshold(const Parts& parts) {
  if (!parts.argument) {
    return wrong(parts.whole, parts.name.substr(parts.name.size()),
                 "threshold wants the magnitude to pass here, such as threshold:0.001");
  }
  // The most is small enough to be written without an exponent's plus, which would end the codec.
  FL_TRY(const float threshold,
         parse_real<float>(parts.whole, *parts.argument, "a threshold is from 0 to 1000000",
                           [](float t) { return t >= 0 && t <= 1e6f; }));
  FL_CHECK(check_no_settings(parts));
  return make_threshold(threshold);
}

SelectorResult parse_ema_threshold(const Parts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  FL_CHECK(check_no_settings(parts));
  return make_ema_threshold(fraction);
}

// One of the two parsers is there.
struct Row {
  CodecRow shown;
  MethodResult (*parse)(const Parts&);
  SelectorResult (*parse_selector)(const Parts&) = nullptr;
  bool warms_up = false;  // Whether its parser reads the argument by parse_argument().
};

constexpr std::array rows = {
    Row{{"none", "none", "fp32 as it is", "none"}, parse_none},
    Row{{"fp16", "fp16", "half precision, |x| up to 65504", "fp16"}, parse_fp16},
    Row{{"qsgd", "qsgd:S[,bucket=512][,norm=max|l2]",
         "S levels of each sign, 127 are 8 bits a value; at random and unbiased without +ef",
         "qsgd:127"},
        parse_qsgd,
        nullptr,
        true},
    Row{{"bf16", "bf16", "bfloat16, 8 bits of precision with the range of fp32", "bf16"},
        parse_bf16},
    Row{{"kbit", "kbit:B[,scale=tensor|channel][,mode=symmetric|affine]",
         "B bits, 2 to 8, with a scale for each tensor or row; at random and unbiased without +ef",
         "kbit:8"},
        parse_kbit,
        nullptr,
        true},
    Row{{"terngrad", "terngrad[,clip=2.5]",
         "-scale, 0 or scale, clipped at so many sigma; with +ef the nearest, else unbiased if "
         "clip=0",
         "terngrad"},
        parse_terngrad},
    Row{{"sign", "sign", "1 bit a value: sign times mean magnitude; biased, use sign+ef", "sign"},
        parse_sign},
    Row{{"eden", "eden:B",
         "B bits, 1 to 4, of a randomly rotated block, which makes all blocks alike; unbiased",
         "eden:2"},
        parse_eden,
        nullptr,
        true},
    Row{{"ecuq", "ecuq:BITS[,mode=dither|centroid]",
         "one step for all tensors, chosen for BITS a value, 0.05 to 8; unbiased without +ef",
         "ecuq:2"},
        parse_ecuq,
        nullptr,
        true},
    Row{{"powersgd", "powersgd:R[@ROUND][,min_ratio=2]",
         "each matrix as two thin ones of rank R, unless small, and fp32 before ROUND; biased, "
         "use +ef",
         "powersgd:2"},
        parse_powersgd,
        nullptr,
        true},
    Row{{"gradzip", "gradzip:R[@ROUND][,min_ratio=2]",
         "each matrix as its product with R random directions, fp32 before ROUND; unbiased without "
         "+ef",
         "gradzip:2"},
        parse_gradzip,
        nullptr,
        true},
    Row{{"countsketch", "countsketch:ROWSxCOLUMNS[,k=COLUMNS/8]",
         "the k largest of 65,536 in a sketch that can be added up; biased, use +ef",
         "countsketch:5x4000"},
        parse_countsketch},
    Row{{"topk", "topk:F[,scope=global][+QUANTIZER]",
         "the largest magnitudes, a fraction F of each tensor or of all together", "topk:0.01"},
        nullptr,
        parse_topk,
        true},
    Row{{"randk", "randk:F[+QUANTIZER]",
         "a fraction F at random, unbiased without +ef; no indices are sent", "randk:0.01"},
        nullptr,
        parse_randk,
        true},
    Row{{"threshold", "threshold:T[+QUANTIZER]", "magnitudes above T", "threshold:0.001"},
        nullptr,
        parse_threshold},
    Row{{"ema-threshold", "ema-threshold:F[+QUANTIZER]",
         "about a fraction F of each tensor, above a threshold that follows it over rounds",
         "ema-threshold:0.01"},
        nullptr,
        parse_ema_threshold,
        true},
};

// One part of a codec, between its plus signs.
Result<Parts> split(std::string_view whole, std::string_view body) {
  auto [head, rest] = cut(body, ',');
  Parts parts{.whole = whole, .name = {}, .argument = {}, .settings = {}, .warm_up = {}};
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

Result<const Row*> find_row(const Parts& parts) {
  const auto row = std::ranges::find(rows, parts.name, [](const Row& r) { return r.shown.name; });
  if (row != rows.end()) return &*row;
  if (parts.name == "ef" || parts.name == "dgc") {
    return wrong(parts.whole, parts.name,
                 fmt::format("{} comes once, at the end, and is for all rules", parts.name));
  }
  std::string names;
  for (const Row& r : rows) names += fmt::format(" {}", r.shown.name);
  return wrong(parts.whole, parts.name, fmt::format("there is no such codec; there are:{}", names));
}

// Takes the value of a setting, if it is there, out of `parts`.
std::optional<std::string_view> take(Parts& parts, std::string_view key) {
  const auto setting =
      std::ranges::find(parts.settings, key, [](const auto& s) { return s.first; });
  if (setting == parts.settings.end()) return std::nullopt;
  const std::string_view value = setting->second;
  parts.settings.erase(setting);
  return value;
}

// Takes the setting that every codec has out of `parts`.
Result<std::uint64_t> take_dense_below(Parts& parts, std::uint64_t otherwise) {
  const auto value = take(parts, "dense_below");
  if (!value) return otherwise;
  FL_TRY(const std::int32_t below,
         parse_number(parts.whole, *value, "dense_below", 0, 1'000'000'000));
  return static_cast<std::uint64_t>(below);
}

Result<void> take_warm_up(Parts& parts) {
  const auto from = take(parts, "from");
  const auto over = take(parts, "over");
  if (!from && !over) return {};
  if (!from || !over) {
    return wrong(parts.whole, from ? *from : *over,
                 "from=X and over=ROUNDS come together: from which number, in how many rounds");
  }
  FL_TRY(const std::int32_t rounds, parse_number(parts.whole, *over, "over", 1, rounds_max));
  parts.warm_up = WarmUp{.from = *from, .over = static_cast<std::uint32_t>(rounds)};
  return {};
}

// A codec without its "+ef" or "+dgc": views into `whole`.
Result<Rule> parse_rule(std::string_view whole, std::string_view pattern, std::string_view codec,
                        bool error_feedback, std::uint32_t round) {
  const auto [head, rest] = cut(codec, '+');
  FL_TRY(Parts parts, split(whole, head));
  parts.error_feedback = error_feedback;
  parts.round = round;
  FL_TRY(const Row* const row, find_row(parts));
  if (row->warms_up) FL_CHECK(take_warm_up(parts));
  Rule rule;
  rule.pattern = pattern;
  FL_TRY(rule.dense_below,
         take_dense_below(parts, Rule::dense_below_of(pattern, row->parse_selector != nullptr)));
  if (!row->parse_selector) {
    FL_TRY(rule.quantizer, row->parse(parts));
    if (rest)
      return wrong(whole, *rest, "behind a quantizer there can only be ef or dgc, at the end");
    return rule;
  }
  FL_TRY(rule.selector, row->parse_selector(parts));
  if (!rest) {
    rule.quantizer = make_fp32();
    return rule;
  }
  const auto [second, third] = cut(*rest, '+');
  FL_TRY(Parts quantizer, split(whole, second));
  quantizer.error_feedback = error_feedback;
  quantizer.round = round;
  FL_TRY(const Row* const quantizer_row, find_row(quantizer));
  if (quantizer_row->warms_up) FL_CHECK(take_warm_up(quantizer));
  if (quantizer_row->parse_selector) {
    return wrong(whole, second, "a codec has one selector, and behind it a quantizer");
  }
  FL_TRY(rule.quantizer, quantizer_row->parse(quantizer));
  if (rule.quantizer->needs_places()) {
    return wrong(whole, second,
                 "behind a selector there are no rows and channels (kbit has scale=tensor)");
  }
  if (third)
    return wrong(whole, *third, "behind a quantizer there can only be ef or dgc, at the end");
  return rule;
}

// What stands before the first '=', if it can be a pattern: in a codec there is a ':' or a ','
// before it.
std::optional<std::string_view> pattern_of(std::string_view rule) {
  const auto [pattern, codec] = cut(rule, '=');
  if (!codec || pattern.find_first_of(":,+") != std::string_view::npos) return std::nullopt;
  return pattern;
}

Error too_long(std::size_t bytes) {
  return {Errc::invalid_input,
          fmt::format("codec: a spec of {} bytes, at most {} are allowed", bytes, spec_bytes_max)};
}

Result<std::vector<Rule>> parse_rules(std::string_view whole, std::string_view list,
                                      bool error_feedback, std::uint32_t round) {
  std::vector<Rule> rules;
  std::optional<std::string_view> rest = list;
  std::string_view pattern;
  while (rest) {
    const auto [text, next] = cut(*rest, ';');
    const auto found = pattern_of(text);
    if (!found || found->empty()) {
      return wrong(whole, text, "a rule looks like PATTERN=CODEC, such as *.bias=none");
    }
    if (!std::ranges::all_of(*found, is_printable)) {
      return wrong(whole, text, "a pattern has printable characters only");
    }
    if (pattern == "*") return wrong(whole, text, "the rule before leaves nothing for this one");
    if (rules.size() == rules_max) {
      return wrong(whole, text, fmt::format("more than {} rules", rules_max));
    }
    pattern = *found;
    FL_TRY(Rule rule,
           parse_rule(whole, pattern, text.substr(pattern.size() + 1), error_feedback, round));
    rules.push_back(std::move(rule));
    rest = next;
  }
  if (pattern != "*")
    return wrong(whole, pattern, "the last rule must be for *: all other tensors");
  return rules;
}

// What stands behind the last plus sign, if that is error feedback, and what stands before it.
struct Feedback {
  std::string_view body;
  std::string_view text;  // Empty: there is none.
  float momentum = 0;
};

Result<Feedback> take_feedback(std::string_view spec) {
  const std::size_t plus = spec.rfind('+');
  if (plus == std::string_view::npos) return Feedback{.body = spec, .text = {}};
  Feedback feedback = {.body = spec.substr(0, plus), .text = spec.substr(plus + 1)};
  const auto [name, momentum] = cut(feedback.text, ':');
  if (feedback.text == "ef") return feedback;
  if (name != "dgc") return Feedback{.body = spec, .text = {}};
  FL_TRY(feedback.momentum,
         parse_real<float>(spec, momentum.value_or(name.substr(name.size())),
                           "dgc wants its momentum here, above 0 and below 1, such as dgc:0.9",
                           [](float m) { return m > 0 && m < 1; }));
  return feedback;
}

}  // namespace

Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec, std::uint32_t round) {
  FL_ASSERT(round >= 1);
  if (spec.size() > spec_bytes_max) return too_long(spec.size());
  FL_TRY(const Feedback feedback, take_feedback(spec));
  const std::string_view body = feedback.body;
  const bool error_feedback = !feedback.text.empty();
  std::vector<Rule> rules;
  if (body.find(';') != std::string_view::npos || pattern_of(body)) {
    FL_TRY(rules, parse_rules(spec, body, error_feedback, round));
  } else {
    FL_TRY(Rule rule, parse_rule(spec, {}, body, error_feedback, round));
    rules.push_back(std::move(rule));
  }
  if (feedback.momentum > 0 &&
      std::ranges::none_of(rules, [](const Rule& rule) { return rule.selector != nullptr; })) {
    return wrong(spec, feedback.text, "dgc is for a selector, such as topk:0.001+dgc:0.9");
  }
  auto codec = std::make_shared<const Codec>(std::move(rules), error_feedback, feedback.momentum);
  // Payloads carry it, and it can be the longer of the two: 1e5 becomes 100000. A warm-up only
  // makes it shorter, by more than the digits of any of its numbers.
  if (codec->canonical().size() > spec_bytes_max) return too_long(codec->canonical().size());
  return std::shared_ptr<const Codec>(std::move(codec));
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
