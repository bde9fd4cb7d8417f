// SPDX-License-Identifier: Apache-2.0
#include "server/run/target.hpp"

#include "server/run/settings.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

namespace fl::server {

namespace {

constexpr std::size_t shown_bytes_max = 100;  // Bytes of a wrong target that an error shows.

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

Result<void> check_known(const Target& target) {
  const KnownMetric* const known = find_known_metric(target.metric);
  if (known == nullptr) return {};
  if (known->lower_is_better != target.lower_is_better) {
    return Error(Errc::invalid_input,
                 fmt::format("for {}, {} values are better: write '{}{}{}'", target.metric,
                             known->lower_is_better ? "lower" : "higher", target.metric,
                             known->lower_is_better ? "<=" : ">=", target.bound));
  }
  if (known->is_fraction && !(target.bound >= 0 && target.bound <= 1)) {
    return Error(Errc::invalid_input, fmt::format("{} is from 0 to 1 (0.86 for 86%), not {}",
                                                  target.metric, target.bound));
  }
  return {};
}

}  // namespace

Result<void> check_main_metric(const std::string& name) {
  if (name.empty() || name == loss_name) return {};
  return check_metric_name(name);
}

Result<Target> parse_target(const std::string& text) {
  // The last sign, because a name may have one in it.
  const std::size_t above = text.rfind(">=");
  const std::size_t below = text.rfind("<=");
  const std::size_t at =
      above == text.npos || (below != text.npos && below > above) ? below : above;
  const auto bound =
      at == text.npos ? std::nullopt : number_of(trimmed(std::string_view(text).substr(at + 2)));
  if (!bound) {
    return Error(Errc::invalid_input,
                 fmt::format("write 'NAME>=NUMBER' or 'NAME<=NUMBER', in quotes, for example "
                             "'accuracy>=0.86' or 'perplexity<=20'; not '{}'",
                             printable(text, shown_bytes_max)));
  }
  Target target{std::string(trimmed(std::string_view(text).substr(0, at))), text[at] == '<',
                *bound};
  if (target.metric.empty())
    return Error(Errc::invalid_input, "the name of a metric is missing before the sign");
  FL_CHECK(check_main_metric(target.metric));
  FL_CHECK(check_known(target));
  return target;
}

std::optional<Target> target_of(const RunSettings& settings) {
  if (!settings.target.empty()) return parse_target(settings.target).value();
  if (settings.target_accuracy > 0) return Target{"accuracy", false, settings.target_accuracy};
  return std::nullopt;
}

MetricKind judged_kind(const std::string& name, const std::optional<Target>& target,
                       std::span<const MetricKind> kinds) {
  MetricKind kind{.name = name};
  if (find_known_metric(name) != nullptr) kind = known_metric(name);
  const auto declared = std::ranges::find(kinds, name, &MetricKind::name);
  if (declared != kinds.end()) kind = *declared;
  if (target && target->metric == name) kind.lower_is_better = target->lower_is_better;
  return kind;
}

Result<void> check_direction(std::span<const MetricKind> declared,
                             const std::optional<Target>& target) {
  if (!target) return {};
  const auto found = std::ranges::find(declared, target->metric, &MetricKind::name);
  if (found == declared.end() || found->lower_is_better == target->lower_is_better) return {};
  return Error(Errc::invalid_input,
               fmt::format("the client says that {} values of {} are better, and the run's target "
                           "is {}{}{}: correct --target, or the client's trainer",
                           found->lower_is_better ? "lower" : "higher", found->name, found->name,
                           target->lower_is_better ? "<=" : ">=", target->bound));
}

}  // namespace fl::server
