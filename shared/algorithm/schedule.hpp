// The learning rate and the local steps of a round, by schedules that both a person and the history
// can read.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace fl {

struct LearningRate {
  enum class Shape { constant, cosine, step };
  Shape shape = Shape::constant;
  std::uint32_t warm_up = 0;  // Rounds in which the rate grows evenly from 1/warm_up of itself.
  double floor = 0;         // cosine: the part of the rate that would be left after the last round.
  std::uint32_t every = 1;  // step: after each so many rounds
  double factor = 0.1;      // the rate is multiplied by this.

  /// What the rate is multiplied by in `round` (from 1) of `rounds`. Cosine: Loshchilov and Hutter
  /// 2017, equation 5, without restarts, over the rounds after the warm-up.
  [[nodiscard]] double at(std::uint32_t round, std::uint32_t rounds) const;
};

/// "constant[:warmup=N]", "cosine[:floor=F,warmup=N]", "step[:every=N,factor=F,warmup=N]".
[[nodiscard]] Result<LearningRate> parse_schedule(std::string_view spec);

/// How many of the steps that were asked for a round takes: H of local SGD.
struct LocalSteps {
  enum class Shape {
    constant,
    warm_up,     // Local SGD warm-up: Lin 2020, appendix B.4.2.
    post_local,  // Post-local SGD: Lin 2020, section 3.
    adaptive,    // AdaComm: Wang and Joshi 2019, equation 17, with rounds for intervals.
  };
  Shape shape = Shape::constant;
  std::uint32_t rounds = 1;  // warm_up: in which H grows evenly from 1 to all steps.
  std::uint32_t from = 1;    // post_local: the round before which H is 1.

  /// H in `round` (from 1), 1 to `steps`. `losses`: the training losses of the rounds before it at
  /// least, the first round's first.
  [[nodiscard]] std::uint32_t at(std::uint32_t round, std::uint32_t steps,
                                 std::span<const double> losses) const;
};

/// "constant", "warmup[:rounds=N]", "post-local[:from=N]", "adaptive".
[[nodiscard]] Result<LocalSteps> parse_steps_schedule(std::string_view spec);

}  // namespace fl
