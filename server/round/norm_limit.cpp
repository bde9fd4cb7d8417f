// SPDX-License-Identifier: Apache-2.0
#include "server/round/norm_limit.hpp"

#include <algorithm>
#include <vector>

namespace fl {

namespace {

/// 0: there are too few.
double median_of(std::span<const double> norms, std::span<const double> more) {
  std::vector<double> all(norms.begin(), norms.end());
  all.insert(all.end(), more.begin(), more.end());
  if (all.size() < norms_to_judge_min) return 0;
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::ranges::nth_element(all, middle);
  return *middle;
}

bool fits(double norm, double median, double limit) {
  return median == 0 || norm <= limit * median;
}

}  // namespace

JudgedNorm judge_norm(double norm, std::span<const double> cohort, std::span<const double> past,
                      double limit) {
  const double median = median_of(cohort, past);
  return {fits(norm, median, limit) ? NormVerdict::fits : NormVerdict::waits, median};
}

JudgedNorm judge_norm_at_end(double norm, std::span<const double> cohort,
                             std::span<const double> past, double limit) {
  const bool is_cohort_enough = cohort.size() >= norms_to_judge_min;
  const double median = median_of(cohort, is_cohort_enough ? std::span<const double>() : past);
  return {fits(norm, median, limit) ? NormVerdict::fits : NormVerdict::too_large, median};
}

}  // namespace fl
