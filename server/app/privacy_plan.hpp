// SPDX-License-Identifier: Apache-2.0
// What differential privacy at the server would cost a run. The server would add noise to each
// round's mean update, so that the models do not show whether a client took part. The plan compares
// the length of that noise with the longest that the updates can be. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fl::server {

struct PrivacyPlan {
  std::uint64_t clients = 0;
  std::uint64_t per_round = 0;  // The mean number of clients in a round; at most `clients`.
  std::uint64_t parameters = 0;
  std::uint64_t rounds = 0;
  double delta = 0;
  std::vector<double> budgets;  // Epsilons, each above 0.
};

/// The plan's outlook for one epsilon. Lengths are Euclidean norms, and units of the longest mean
/// update: that of clients whose updates all have the length of the clip, and are alike.
struct PrivacyOutlook {
  double epsilon = 0;
  double noise_multiplier = 0;
  double noise_of_round = 0;  // The length of a round's noise.
  double noise_of_run =
      0;  // The length of all rounds' noise together, in units of `rounds` such updates.
};

/// Noise that is as long as all updates together can be leaves nothing of them.
inline constexpr double noise_hopeless = 1;
/// Above it the model learns noticeably less.
inline constexpr double noise_costly = 0.3;

/// The outlooks, one for each budget that some noise keeps. Takes up to seconds for each.
[[nodiscard]] std::vector<PrivacyOutlook> outlooks_of(const PrivacyPlan& plan);
/// How many clients a round needs so that the noise is costly no more, with the same part of all
/// clients in a round.
[[nodiscard]] double clients_needed(const PrivacyPlan& plan, const PrivacyOutlook& outlook);
/// The plan for people: assumptions, a table, and what it comes to.
[[nodiscard]] std::string plan_text(const PrivacyPlan& plan,
                                    const std::vector<PrivacyOutlook>& outlooks);

}  // namespace fl::server
