// SPDX-License-Identifier: Apache-2.0
#include "shared/params/column_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fl {

namespace {

/// The median; of two middle values, their mean.
double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : values[half - 1] / 2 + values[half] / 2;
}

}  // namespace

Result<void> check_summaries(std::span<const ColumnSummary> told, std::uint64_t wanted,
                             std::uint64_t examples) {
  if (told.size() != wanted) {
    return Error(Errc::invalid_input,
                 fmt::format("mean and variance of {} values are told, and the model has {}",
                             told.size(), wanted));
  }
  const auto fits = [](double value) {
    return std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max());
  };
  for (const ColumnSummary& one : told) {
    // Written so that NaN fails too.
    const bool is_right = one.count >= 0 && one.count <= static_cast<double>(examples) &&
                          fits(one.mean) && one.squares >= 0 &&
                          (one.count == 0 ? one.squares == 0 : fits(one.squares / one.count));
    if (is_right) continue;
    return Error(Errc::invalid_input,
                 fmt::format("value {} has count {}, mean {} and squared deviations {}, of {} "
                             "examples",
                             &one - told.data() + 1, one.count, one.mean, one.squares, examples));
  }
  return {};
}

void add_summaries(std::span<ColumnSummary> sum, std::span<const ColumnSummary> more,
                   double share) {
  FL_ASSERT(sum.size() == more.size());
  for (std::size_t i = 0; i < more.size(); ++i) {
    ColumnSummary& all = sum[i];
    const double added = more[i].count * share;
    const double count = all.count + added;
    if (count == 0) continue;
    const double apart = more[i].mean - all.mean;
    all.mean += apart * (added / count);
    all.squares += more[i].squares * share + apart * apart * (all.count * (added / count));
    all.count = count;
  }
}

std::vector<ColumnSummary> median_summaries(std::span<const std::vector<ColumnSummary>> told) {
  std::vector<ColumnSummary> medians;
  for (std::size_t i = 0; i < told.front().size(); ++i) {
    std::vector<double> means;
    std::vector<double> variances;
    for (const auto& one : told) {
      if (one[i].count == 0) continue;
      means.push_back(one[i].mean);
      variances.push_back(one[i].squares / one[i].count);
    }
    medians.push_back(means.empty() ? ColumnSummary()
                                    : ColumnSummary{1, median_of(means), median_of(variances)});
  }
  return medians;
}

}  // namespace fl
