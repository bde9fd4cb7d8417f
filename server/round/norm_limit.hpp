// SPDX-License-Identifier: Apache-2.0
// Whether an update is so much larger than the others that it must not count (--norm-limit): its
// client's training has diverged, its data are broken, or it is malicious. The sums could hold any
// update; this is a matter of policy.
//
// An update is compared with those of at least two other clients: of its round, and of clients that
// have none in it the last one before. So a client can't make its own norm the usual one. An update
// that looks too large waits until the round closes, and is then judged by the updates of its
// round, not by those that happened to come first. The first two updates of a run have nothing to
// be compared with, and count. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <span>

namespace fl {

/// Fewer norms, with its own among them, say nothing about an update.
inline constexpr std::size_t norms_to_judge_min = 3;

enum class NormVerdict { fits, waits, too_large };

struct JudgedNorm {
  NormVerdict verdict;
  double median;  // The median of the norms that it was compared with; 0: there were too few.
};

/// Judges an update while its round takes more of them. `norm`: the update's. `cohort`: the norms
/// of all updates that have arrived in its round, its own among them. `past`: of other clients, the
/// norm of each one's last update that was accepted, or refused for its norm. `limit`: the largest
/// allowed ratio to the median. An update that is too large waits.
///
/// If the number of norms is even, the larger middle one is the median. If it is 0 all norms fit.
[[nodiscard]] JudgedNorm judge_norm(double norm, std::span<const double> cohort,
                                    std::span<const double> past, double limit);

/// The same at the end of a round, when an update either fits or is too large. It is compared with
/// the cohort alone, if that has enough norms. If there are too few in all, it fits.
[[nodiscard]] JudgedNorm judge_norm_at_end(double norm, std::span<const double> cohort,
                                           std::span<const double> past, double limit);

}  // namespace fl
