// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/spec/parser.hpp"

#include "shared/base/limits.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace fl::codec {

namespace {

// Splits the text between two plus signs into name, argument and settings.
Result<SpecParts> split(std::string_view whole, std::string_view body) {
  const auto [head, settings] = cut(body, ',');
  SpecParts parts{.whole = whole, .name = {}, .argument = {}, .settings = {}, .warm_up = {}};
  std::tie(parts.name, parts.argument) = cut(head, ':');
  if (!settings) return parts;
  if (const auto fault = split_settings(*settings, parts.settings)) {
    return wrong(whole, fault->part,
                 fault->kind == SpecFault::Kind::given_twice
                     ? fmt::format("{} is set twice", fault->part)
                     : "a setting must be key=value");
  }
  return parts;
}

// Removes a setting from `parts` and returns its value, if it is there.
std::optional<std::string_view> take(SpecParts& parts, std::string_view key) {
  const auto setting =
      std::ranges::find(parts.settings, key, [](const auto& s) { return s.first; });
  if (setting == parts.settings.end()) return std::nullopt;
  const std::string_view value = setting->second;
  parts.settings.erase(setting);
  return value;
}

// Removes the setting dense_below, which every codec has, from `parts`.
Result<std::uint64_t> take_dense_below(SpecParts& parts, std::uint64_t otherwise) {
  const auto value = take(parts, "dense_below");
  if (!value) return otherwise;
  FL_TRY(const std::int32_t below,
         parse_number(parts.whole, *value, "dense_below", 0, 1'000'000'000));
  return static_cast<std::uint64_t>(below);
}

// Moves the settings from and over to parts.warm_up.
Result<void> take_warm_up(SpecParts& parts) {
  const auto from = take(parts, "from");
  const auto over = take(parts, "over");
  if (!from && !over) return {};
  if (!from || !over) {
    return wrong(parts.whole, from ? *from : *over,
                 "a warm-up needs both from=NUMBER (in round 1) and over=ROUNDS (its length)");
  }
  FL_TRY(const std::int32_t rounds, parse_number(parts.whole, *over, "over", 1, rounds_max));
  parts.warm_up = SpecParts::WarmUp{.from = *from, .over = static_cast<std::uint32_t>(rounds)};
  return {};
}

// Parses a codec without its "delta+", "+ef" or "+dgc". `pattern` and `codec` are views into
// `whole`.
Result<Rule> parse_rule(std::string_view whole, std::string_view pattern, std::string_view codec,
                        bool error_feedback, std::uint32_t round) {
  const auto [head, rest] = cut(codec, '+');
  FL_TRY(SpecParts parts, split(whole, head));
  parts.error_feedback = error_feedback;
  parts.round = round;
  FL_TRY(const CodecRow* const row, find_codec(parts));
  if (row->warms_up) FL_CHECK(take_warm_up(parts));
  Rule rule;
  rule.pattern = pattern;
  FL_TRY(rule.dense_below,
         take_dense_below(parts, Rule::dense_below_of(pattern, row->parse_selector != nullptr)));
  if (!row->parse_selector) {
    FL_TRY(rule.quantizer, row->parse(parts));
    if (rest)
      return wrong(whole, *rest, "only +ef or +dgc can follow a quantizer, at the end of the spec");
    return rule;
  }
  FL_TRY(rule.selector, row->parse_selector(parts));
  if (!rest) {
    rule.quantizer = make_lossless();
    return rule;
  }
  const auto [second, third] = cut(*rest, '+');
  FL_TRY(SpecParts quantizer, split(whole, second));
  quantizer.error_feedback = error_feedback;
  quantizer.round = round;
  FL_TRY(const CodecRow* const quantizer_row, find_codec(quantizer));
  if (quantizer_row->warms_up) FL_CHECK(take_warm_up(quantizer));
  if (quantizer_row->parse_selector) {
    return wrong(whole, second, "a codec has only one selector; a quantizer may follow it");
  }
  FL_TRY(rule.quantizer, quantizer_row->parse(quantizer));
  if (rule.quantizer->needs_places()) {
    return wrong(whole, second,
                 "this quantizer needs whole rows and can't follow a selector (for kbit use "
                 "scale=tensor)");
  }
  if (third)
    return wrong(whole, *third, "only +ef or +dgc can follow a quantizer, at the end of the spec");
  return rule;
}

// The text before the first '=', if it can be a pattern. In a codec without a pattern a ':', ',' or
// '+' comes before the first '='.
std::optional<std::string_view> pattern_of(std::string_view rule) {
  const auto [pattern, codec] = cut(rule, '=');
  if (!codec || pattern.find_first_of(":,+") != std::string_view::npos) return std::nullopt;
  return pattern;
}

Error too_long(std::size_t bytes) {
  return {Errc::invalid_input,
          fmt::format("codec: the spec has {} bytes, but at most {} are allowed", bytes,
                      limits::spec_bytes_max)};
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
      return wrong(whole, text, "a rule must be PATTERN=CODEC, such as *.bias=none");
    }
    if (!std::ranges::all_of(*found, is_printable)) {
      return wrong(whole, text,
                   "a pattern may have printable ASCII only; * stands for any other characters");
    }
    if (pattern == "*")
      return wrong(whole, text, "the rule before is for *, so no tensor is left for this one");
    if (rules.size() == rules_max) {
      return wrong(whole, text, fmt::format("at most {} rules are allowed", rules_max));
    }
    pattern = *found;
    FL_TRY(Rule rule,
           parse_rule(whole, pattern, text.substr(pattern.size() + 1), error_feedback, round));
    rules.push_back(std::move(rule));
    rest = next;
  }
  if (pattern != "*")
    return wrong(whole, pattern, "the last rule must have the pattern *, for all other tensors");
  return rules;
}

// A spec without "delta+" in front and without the feedback at the end.
struct Parts {
  std::string_view body;
  std::string_view feedback;  // "ef", "ef:KEEP" or "dgc:MOMENTUM"; empty if there is none.
  float keep = 1;             // The KEEP of "ef".
  float momentum = 0;         // The MOMENTUM of "dgc".
  bool is_delta = false;
};

Result<Parts> take_apart(std::string_view spec) {
  Parts parts{.body = spec, .feedback = {}};
  if (spec.starts_with(delta_prefix)) {
    parts.is_delta = true;
    parts.body.remove_prefix(delta_prefix.size());
  }
  const std::size_t plus = parts.body.rfind('+');
  if (plus == std::string_view::npos) return parts;
  const std::string_view last = parts.body.substr(plus + 1);
  const auto [name, number] = cut(last, ':');
  if (name != "ef" && name != "dgc") return parts;
  if (parts.is_delta) {
    return wrong(spec, last,
                 "delta+ needs no error feedback: what one delta loses is part of the next one");
  }
  parts.body = parts.body.substr(0, plus);
  parts.feedback = last;
  if (last == "ef") return parts;
  const auto is_part = [](float value) { return value > 0 && value < 1; };
  const std::string_view text = number.value_or(name.substr(name.size()));
  if (name == "ef") {
    FL_TRY(parts.keep,
           parse_real<float>(spec, text,
                             "ef may have the part of the residual that is kept here, above 0 and "
                             "below 1, such as ef:0.95",
                             is_part));
    return parts;
  }
  FL_TRY(
      parts.momentum,
      parse_real<float>(
          spec, text, "dgc needs a momentum here, above 0 and below 1, such as dgc:0.9", is_part));
  return parts;
}

}  // namespace

Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec, std::uint32_t round) {
  FL_ASSERT(round >= 1);
  if (spec.size() > limits::spec_bytes_max) return too_long(spec.size());
  FL_TRY(const Parts parts, take_apart(spec));
  const std::string_view body = parts.body;
  const bool error_feedback = !parts.feedback.empty();
  // Later updates then make up for what this one loses, so coding should lose little and need not
  // be unbiased.
  const bool comes_again = error_feedback || parts.is_delta;
  std::vector<Rule> rules;
  if (body.find(';') != std::string_view::npos || pattern_of(body)) {
    FL_TRY(rules, parse_rules(spec, body, comes_again, round));
  } else {
    FL_TRY(Rule rule, parse_rule(spec, {}, body, comes_again, round));
    rules.push_back(std::move(rule));
  }
  if (parts.momentum > 0 &&
      std::ranges::none_of(rules, [](const Rule& rule) { return rule.selector != nullptr; })) {
    return wrong(spec, parts.feedback, "dgc needs a selector, such as topk:0.001+dgc:0.9");
  }
  auto codec = std::make_shared<const Codec>(std::move(rules),
                                             Codec::Upkeep{.error_feedback = error_feedback,
                                                           .keep = parts.keep,
                                                           .momentum = parts.momentum,
                                                           .is_delta = parts.is_delta});
  // Messages carry the canonical spec. It can be longer than the given one: 1e5 becomes 100000.
  // With a warm-up it is shorter, because the settings from and over have more characters than any
  // number between the two.
  if (codec->canonical().size() > limits::spec_bytes_max)
    return too_long(codec->canonical().size());
  return std::shared_ptr<const Codec>(std::move(codec));
}

}  // namespace fl::codec
