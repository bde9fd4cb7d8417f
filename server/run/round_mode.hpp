// SPDX-License-Identifier: Apache-2.0
// When a round closes, and what happens to updates that were trained from an older version.
//
//   sync    All clients of a round train from one version. The round has a target and a deadline.
//           With late=N an update that is too late for its round counts in one of the next N.
//   async   A round is a buffer of K updates (FedBuff, Nguyen 2022, algorithm 1; K = 1 is FedAsync,
//           Xie 2019). A client that is done gets the newest version at once; nobody waits. An
//           update counts once, and a client has at most one in a round. The deadline is for tasks.
//
// An update's staleness t is the number of versions that were made since the one it was trained
// from. The update counts n * s(t) with s(0) = 1, and the step is sum(n_k s(t_k) d_k) / sum(n_k):
// so stale updates make the step smaller, as in FedBuff, and do not only shift weight to others.
//
//   weight=       constant: s = 1; inverse: 1 / (1 + t); sqrt: 1 / sqrt(1 + t), which is FedBuff's
//                 choice; exponential: base^t.
//   late=N        Updates with a larger staleness do not count.
//   ahead=N       Bounded staleness (SSP, Ho 2013, section 3): a client that has sent more than N
//                 updates above the slowest connected one waits for it. A client that comes back,
//                 and was further behind, counts as N behind the fastest.
//   sync=T        Every T-th round waits for all tasks that are under way.
//   compensate=L  Delay compensation (DC-ASGD, Zheng 2017, equation 10), see
//                 server/versions/delay_compensation.hpp.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <string_view>

namespace fl::server {

struct RoundMode {
  enum class Discount { constant, inverse, sqrt, exponential };
  bool is_async = false;
  std::uint32_t buffer = 10;  // K.
  Discount discount = Discount::sqrt;
  double base = 0.9;        // The base of the exponential discount.
  Round late_max = 0;       // The largest staleness that counts.
  std::uint32_t ahead = 0;  // 0: no limit.
  Round sync_every = 0;     // 0: never.
  double compensation = 0;  // Lambda; 0: none.

  /// Whether tasks that are under way when a round closes go on in the next one.
  [[nodiscard]] bool carries() const { return late_max > 0; }
  /// Whether this round of an asynchronous run waits for all tasks that are under way.
  [[nodiscard]] bool is_barrier(Round round) const {
    return sync_every > 0 && round % sync_every == 0;
  }
  /// Weights in the sums are whole multiples of 1/unit(): n * s(t) is rounded to one.
  [[nodiscard]] std::uint64_t unit() const {
    return carries() && discount != Discount::constant ? 256 : 1;
  }
  /// n * s(t) * unit(), at least 1.
  [[nodiscard]] std::uint64_t discounted(std::uint64_t weight, Round staleness) const;
};

/// "sync[:late=N,weight=…,base=…]", "async[:buffer=K,late=N,weight=…,base=…,ahead=N,sync=T,
/// compensate=L]".
[[nodiscard]] Result<RoundMode> parse_mode(std::string_view spec);

}  // namespace fl::server
