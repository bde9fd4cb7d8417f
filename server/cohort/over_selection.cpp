// SPDX-License-Identifier: Apache-2.0
#include "server/cohort/over_selection.hpp"

#include "shared/base/median.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

bool has_answered(const ClientHistory& history) {
  return history.last_round > 0 && history.last_state == TaskState::accepted;
}

}  // namespace

std::size_t adapted_cohort(std::uint32_t target, std::span<const Candidate> candidates) {
  std::vector<double> times;  // The times of the clients that brought an update.
  for (const Candidate& candidate : candidates) {
    if (has_answered(candidate.history)) times.push_back(candidate.history.last_seconds);
  }
  if (times.empty()) return target;
  const double limit = slow_factor * upper_median(std::move(times));

  double judged = 0;
  double slow = 0;
  for (const Candidate& candidate : candidates) {
    const ClientHistory& history = candidate.history;
    if (history.last_round == 0) continue;
    const bool has_failed =
        history.last_state == TaskState::lost || history.last_state == TaskState::refused;
    const bool is_slow = has_failed || history.last_seconds > limit;
    if (!is_slow && !has_answered(history)) continue;
    ++judged;
    if (is_slow) ++slow;
  }
  const double most = std::floor(over_select_max * target);
  const double wanted = slow < judged ? std::ceil(target * judged / (judged - slow) - 1e-9) : most;
  return static_cast<std::size_t>(std::min(wanted, most));
}

}  // namespace fl::server
