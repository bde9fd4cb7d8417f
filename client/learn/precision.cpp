// SPDX-License-Identifier: Apache-2.0
#include "client/learn/precision.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace fl {

namespace {

constexpr std::string_view adaptive = "adaptive";
constexpr std::size_t rules_max = 100;

std::optional<NumberFormat> format_named(std::string_view name) {
  if (name == "fp32") return NumberFormat::fp32;
  if (name == "bf16") return NumberFormat::bf16;
  if (name == "fp16") return NumberFormat::fp16;
  return std::nullopt;
}

Error unknown(std::string_view text, std::string_view name) {
  return {Errc::invalid_input,
          fmt::format("precision \"{}\": unknown number format \"{}\"; use one of: fp32, bf16, "
                      "fp16, or first adaptive, adaptive:bf16, adaptive:fp16",
                      text, name)};
}

}  // namespace

bool PrecisionPlan::has(NumberFormat format) const {
  return otherwise == format || std::ranges::count(rules, format, &Rule::format) > 0;
}

NumberFormat PrecisionPlan::format_of(std::string_view layer) const {
  const auto found = std::ranges::find_if(
      rules, [&](const Rule& rule) { return fits_pattern(rule.pattern, layer); });
  return found == rules.end() ? otherwise : found->format;
}

Result<void> PrecisionPlan::check_layers(std::span<const std::string> layers) const {
  for (const Rule& rule : rules) {
    const auto fits = [&](const std::string& layer) { return fits_pattern(rule.pattern, layer); };
    if (std::ranges::any_of(layers, fits)) continue;
    return Error(Errc::invalid_input,
                 fmt::format("precision: no layer of this model fits the pattern \"{}\"; its "
                             "layers are {}",
                             rule.pattern, fmt::join(layers, ", ")));
  }
  return {};
}

Result<PrecisionPlan> parse_precision(std::string_view text) {
  PrecisionPlan plan;
  auto [first, rest] = cut(text, ',');
  const auto [name, kind] = cut(first, ':');
  plan.is_adaptive = name == adaptive;
  const auto otherwise =
      plan.is_adaptive ? format_named(kind.value_or("bf16")) : format_named(first);
  if (!otherwise || (plan.is_adaptive && otherwise == NumberFormat::fp32))
    return unknown(text, first);
  plan.otherwise = *otherwise;
  while (rest) {
    const auto [rule, next] = cut(*rest, ',');
    const auto [pattern, format_text] = cut(rule, '=');
    if (!format_text || pattern.empty()) {
      return Error(Errc::invalid_input,
                   fmt::format("precision \"{}\": \"{}\" is not PATTERN=FORMAT, such as "
                               "*norm*=fp32",
                               text, rule));
    }
    const auto format = format_named(*format_text);
    if (!format) return unknown(text, *format_text);
    if (plan.rules.size() == rules_max) {
      return Error(Errc::invalid_input, fmt::format("precision: more than {} patterns", rules_max));
    }
    plan.rules.push_back({.pattern = std::string(pattern), .format = *format});
    rest = next;
  }
  return plan;
}

bool AdaptivePrecision::is_odd(double norm) const {
  return counted_ >= counted_min && (norm > odd_factor * mean_ || norm * odd_factor < mean_);
}

void AdaptivePrecision::note_low(double norm, const Outcome& outcome) {
  count(norm);
  overflows_ = outcome.has_overflowed ? overflows_ + 1 : 0;
  if (overflows_ < overflows_max && !outcome.is_odd) return;
  overflows_ = 0;
  full_left_ = pause_;
  pause_ = std::min(2 * pause_, pause_max);
}

void AdaptivePrecision::note_full(double norm) {
  count(norm);
  --full_left_;
}

void AdaptivePrecision::count(double norm) {
  if (!std::isfinite(norm)) return;
  mean_ = counted_ == 0 ? norm : (1 - newest_weight) * mean_ + newest_weight * norm;
  if (counted_ < counted_min) ++counted_;
}

}  // namespace fl
