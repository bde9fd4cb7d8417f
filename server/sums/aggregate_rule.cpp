// SPDX-License-Identifier: Apache-2.0
#include "server/sums/aggregate_rule.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

using Kind = AggregateRule::Kind;

constexpr std::string_view mixing_prefix = "nnm";
constexpr double trim_max = 1e6;

/// The arguments behind a rule's colon.
class Arguments {
 public:
  Arguments(std::string_view spec, std::optional<std::string_view> text)
      : spec_(spec), text_(text) {}

  [[nodiscard]] bool is_given() const { return text_.has_value(); }
  [[nodiscard]] Error wrong(std::string_view why) const {
    return {Errc::invalid_input, fmt::format("'{}': {}", spec_, why)};
  }
  Result<void> none() const {
    if (!text_) return {};
    return wrong("this rule takes no number");
  }
  Result<double> number(std::string_view what, double most) const {
    const auto value = number_in<double>(text_.value_or(""));
    if (value && *value > 0 && *value <= most) return *value;
    return wrong(fmt::format("{} must be a number above 0 and at most {:g}", what, most));
  }
  Result<std::uint32_t> count(std::string_view text, std::string_view what,
                              std::uint32_t least) const {
    const auto value = number_in<std::uint32_t>(text);
    if (value && *value >= least && *value <= trim_max) return *value;
    return wrong(fmt::format("{} must be a whole number from {} to {:g}", what, least, trim_max));
  }
  Result<std::uint32_t> count(std::string_view what) const {
    return count(text_.value_or(""), what, 0);
  }
  [[nodiscard]] std::pair<std::string_view, std::optional<std::string_view>> two() const {
    return cut(text_.value_or(""), ',');
  }

 private:
  std::string_view spec_;
  std::optional<std::string_view> text_;
};

Result<void> read_trim(const Arguments& arguments, AggregateRule& rule) {
  FL_TRY(rule.trim, arguments.number("F", trim_max));
  const bool is_count = rule.trim >= 1 && rule.trim == std::floor(rule.trim);
  if (is_count || rule.trim < 0.5) return {};
  return arguments.wrong("F is a whole number of updates, or a part of them below 0.5");
}

Result<void> read_multikrum(const Arguments& arguments, AggregateRule& rule) {
  const auto [f, m] = arguments.two();
  FL_TRY(rule.f, arguments.count(f, "f, the first number,", 0));
  FL_TRY(rule.best, arguments.count(m.value_or(""), "m, the second number,", 1));
  return {};
}

Result<void> read_rule(std::string_view spec, std::string_view text, AggregateRule& rule) {
  const auto [name, argument] = cut(text, ':');
  const Arguments arguments(spec, argument);
  if (name == "mean" || name == "median" || name == "geomedian") {
    rule.kind = name == "mean" ? Kind::mean : name == "median" ? Kind::median : Kind::geomedian;
    return arguments.none();
  }
  if (name == "trimmed") {
    rule.kind = Kind::trimmed;
    return read_trim(arguments, rule);
  }
  if (name == "krum" || name == "multikrum") {
    rule.kind = Kind::krum;
    if (name == "multikrum") return read_multikrum(arguments, rule);
    if (!arguments.is_given()) return {};
    FL_TRY(rule.f, arguments.count("f"));
    return {};
  }
  if (name == "centered-clip") {
    rule.kind = Kind::centered_clip;
    FL_TRY(rule.clip, arguments.number("TAU", 1e30));
    return {};
  }
  return arguments.wrong(
      "there is no such rule; choose mean, median, trimmed:F, krum[:F], multikrum:F,M, geomedian "
      "or centered-clip:TAU, or one of the robust ones with nnm+ in front");
}

}  // namespace

std::uint32_t AggregateRule::least_updates() const {
  std::uint32_t least = kind == Kind::mean || kind == Kind::centered_clip ? 1 : 3;
  if (kind == Kind::trimmed && trim >= 1) least = 2 * static_cast<std::uint32_t>(trim) + 1;
  if (kind == Kind::krum) least = std::max(2 * f.value_or(1) + 3, best + f.value_or(1));
  if (mixes) least = std::max(least, 2 * mix.value_or(1) + 1);
  return least;
}

std::size_t AggregateRule::trimmed_of(std::size_t n) const {
  const double wanted = trim >= 1 ? trim : std::ceil(trim * static_cast<double>(n) - 1e-9);
  return std::min(static_cast<std::size_t>(wanted), (n - 1) / 2);
}

std::size_t AggregateRule::krum_f_of(std::size_t n) const {
  const std::size_t most = n < 3 ? 0 : (n - 3) / 2;
  return std::min<std::size_t>(f.value_or(most), most);
}

std::size_t AggregateRule::mix_f_of(std::size_t n) const {
  const std::size_t most = (n - 1) / 2;
  if (mix) return std::min<std::size_t>(*mix, most);
  if (kind == Kind::krum) return krum_f_of(n);
  if (kind == Kind::trimmed) return trimmed_of(n);
  return most;
}

Result<AggregateRule> parse_aggregate(std::string_view spec) {
  AggregateRule rule;
  const auto [front, behind] = cut(spec, '+');
  if (!behind) {
    FL_CHECK(read_rule(spec, spec, rule));
    return rule;
  }
  const auto [name, argument] = cut(front, ':');
  const Arguments arguments(spec, argument);
  if (name != mixing_prefix) return arguments.wrong("only nnm or nnm:F may stand before the +");
  rule.mixes = true;
  if (argument) {
    FL_TRY(rule.mix, arguments.count("f of nnm"));
  }
  FL_CHECK(read_rule(spec, *behind, rule));
  if (rule.is_mean())
    return arguments.wrong("nnm+ goes before a robust rule, for example nnm+median");
  return rule;
}

}  // namespace fl
