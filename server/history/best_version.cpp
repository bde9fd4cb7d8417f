// SPDX-License-Identifier: Apache-2.0
#include "server/history/best_version.hpp"

#include "server/history/cells.hpp"

#include <fmt/format.h>

namespace fl::server {

std::optional<BestVersion> best_of(const MetricKind& kind, const MeasuredVersions& measured) {
  std::optional<BestVersion> best;
  for (const MeasuredVersion& each : measured.versions) {
    const auto counted = counted_claims(each.claims);
    const auto value = combine(kind.combine, counted);
    if (!value) continue;  // combine() leaves out what is not finite.
    const bool is_better =
        !best || (kind.lower_is_better ? *value < best->figure.value : *value > best->figure.value);
    if (!is_better) continue;
    const bool is_exact = kind.combine != Combine::none || counted.size() == 1;
    best = BestVersion{.version = each.version,
                       .is_kept = each.is_kept,
                       .figure = {kind.name, *value, is_exact},
                       .clients = counted.size(),
                       .by_evaluators = measured.by_evaluators};
  }
  return best;
}

std::string best_text(const BestVersion& best) {
  const MetricFigure& figure = best.figure;
  return fmt::format("version {}, {} {}", best.version, figure.name,
                     figure_text(figure.name, figure.value, figure.is_exact));
}

}  // namespace fl::server
