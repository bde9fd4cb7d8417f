// The grammar of specs: rules, selectors before quantizers, warm-ups, feedback.
#include "shared/codec/encode/codec.hpp"

#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace fl {

namespace {

// One part of a codec, between its plus signs.
Result<SpecParts> split(std::string_view whole, std::string_view body) {
  const auto [head, settings] = cut(body, ',');
  SpecParts parts{.whole = whole, .name = {}, .argument = {}, .settings = {}, .warm_up = {}};
  std::tie(parts.name, parts.argument) = cut(head, ':');
  if (!settings) return parts;
  if (const auto fault = split_settings(*settings, parts.settings)) {
    return wrong(whole, fault->part,
                 fault->kind == SpecFault::Kind::given_twice
                     ? fmt::format("{} is set twice", fault->part)
                     : "a setting looks like key=value");
  }
  return parts;
}

// Takes the value of a setting, if it is there, out of `parts`.
std::optional<std::string_view> take(SpecParts& parts, std::string_view key) {
  const auto setting =
      std::ranges::find(parts.settings, key, [](const auto& s) { return s.first; });
  if (setting == parts.settings.end()) return std::nullopt;
  const std::string_view value = setting->second;
  parts.settings.erase(setting);
  return value;
}

// Takes the setting that every codec has out of `parts`.
Result<std::uint64_t> take_dense_below(SpecParts& parts, std::uint64_t otherwise) {
  const auto value = take(parts, "dense_below");
  if (!value) return otherwise;
  FL_TRY(const std::int32_t below,
         parse_number(parts.whole, *value, "dense_below", 0, 1'000'000'000));
  return static_cast<std::uint64_t>(below);
}

Result<void> take_warm_up(SpecParts& parts) {
  const auto from = take(parts, "from");
  const auto over = take(parts, "over");
  if (!from && !over) return {};
  if (!from || !over) {
    return wrong(parts.whole, from ? *from : *over,
                 "from=X and over=ROUNDS come together: from which number, in how many rounds");
  }
  FL_TRY(const std::int32_t rounds, parse_number(parts.whole, *over, "over", 1, rounds_max));
  parts.warm_up = SpecParts::WarmUp{.from = *from, .over = static_cast<std::uint32_t>(rounds)};
  return {};
}

// A codec without its "+ef" or "+dgc": views into `whole`.
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
      return wrong(whole, *rest, "behind a quantizer there can only be ef or dgc, at the end");
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

// What a codec is between a "delta+" and the feedback behind the last plus sign, if they are there.
struct Parts {
  std::string_view body;
  std::string_view feedback;  // Empty: there is none.
  float momentum = 0;
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
  const auto [name, momentum] = cut(last, ':');
  if (last != "ef" && name != "dgc") return parts;
  if (parts.is_delta) {
    return wrong(spec, last,
                 "what a delta has lost is in the next one anyway: it goes without error feedback");
  }
  parts.body = parts.body.substr(0, plus);
  parts.feedback = last;
  if (last == "ef") return parts;
  FL_TRY(parts.momentum,
         parse_real<float>(spec, momentum.value_or(name.substr(name.size())),
                           "dgc wants its momentum here, above 0 and below 1, such as dgc:0.9",
                           [](float m) { return m > 0 && m < 1; }));
  return parts;
}

}  // namespace

Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec, std::uint32_t round) {
  FL_ASSERT(round >= 1);
  if (spec.size() > spec_bytes_max) return too_long(spec.size());
  FL_TRY(const Parts parts, take_apart(spec));
  const std::string_view body = parts.body;
  const bool error_feedback = !parts.feedback.empty();
  // Whatever is lost comes again later, so it need not be right on average but little.
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
    return wrong(spec, parts.feedback, "dgc is for a selector, such as topk:0.001+dgc:0.9");
  }
  auto codec = std::make_shared<const Codec>(std::move(rules),
                                             Codec::Upkeep{.error_feedback = error_feedback,
                                                           .momentum = parts.momentum,
                                                           .is_delta = parts.is_delta});
  // Payloads carry it, and it can be the longer of the two: 1e5 becomes 100000. A warm-up only
  // makes it shorter, by more than the digits of any of its numbers.
  if (codec->canonical().size() > spec_bytes_max) return too_long(codec->canonical().size());
  return std::shared_ptr<const Codec>(std::move(codec));
}

}  // namespace fl
