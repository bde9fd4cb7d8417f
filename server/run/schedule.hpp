// SPDX-License-Identifier: Apache-2.0
// Schedules for the learning rate and the local steps of a round, and the specs that name them.
// Plain values; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace fl::server {

/// How the clients' learning rate changes from round to round.
struct LearningRate {
  enum class Shape { constant, cosine, step };
  Shape shape = Shape::constant;
  /// The number of first rounds in which the rate grows evenly, from 1/warm_up to 1.
  std::uint32_t warm_up = 0;
  double floor = 0;         // cosine: the factor that would be reached one round after the last.
  std::uint32_t every = 1;  // step: rounds between two reductions.
  double factor = 0.1;      // step: each reduction multiplies the rate by this.

  /// The factor for the rate in `round` (1 is the first) of `rounds`. Cosine follows Loshchilov and
  /// Hutter 2017, equation 5, without restarts, over the rounds after the warm-up.
  [[nodiscard]] double at(std::uint32_t round, std::uint32_t rounds) const;
};

/// Parses "constant[:warmup=N]", "cosine[:floor=F,warmup=N]" or "step[:every=N,factor=F,warmup=N]".
/// Returns invalid_input for anything else.
[[nodiscard]] Result<LearningRate> parse_schedule(std::string_view spec);

/// How many of the configured local steps a round takes: H of local SGD.
struct LocalSteps {
  enum class Shape {
    constant,
    warm_up,     // Local SGD warm-up: Lin 2020, appendix B.4.2.
    post_local,  // Post-local SGD: Lin 2020, section 3.
    adaptive,    // AdaComm: Wang and Joshi 2019, equation 17; an interval is a round.
  };
  Shape shape = Shape::constant;
  std::uint32_t rounds = 1;  // warm_up: H grows evenly from 1 to all steps in these first rounds.
  std::uint32_t from = 1;    // post_local: the first round with all steps; before it H is 1.

  /// H in `round` (1 is the first), from 1 to `steps`. `losses` are the training losses by round,
  /// round 1 first, and include all rounds before `round`. Only adaptive reads them.
  [[nodiscard]] std::uint32_t at(std::uint32_t round, std::uint32_t steps,
                                 std::span<const double> losses) const;
};

/// Parses "constant", "warmup[:rounds=N]", "post-local[:from=N]" or "adaptive". Returns
/// invalid_input for anything else.
[[nodiscard]] Result<LocalSteps> parse_steps_schedule(std::string_view spec);

}  // namespace fl::server
