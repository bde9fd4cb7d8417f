// The learning rate of a round, by a schedule that both a person and the history can read.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <string_view>

namespace fl {

struct LearningRate {
  enum class Shape { constant, cosine, step };
  Shape shape = Shape::constant;
  std::uint32_t warm_up = 0;  // Rounds in which the rate grows evenly from 1/warm_up of itself.
  double floor = 0;           // cosine: the part of the rate that is left in the last round.
  std::uint32_t every = 1;    // step: after each so many rounds
  double factor = 0.1;        // the rate is multiplied by this.

  /// What the rate is multiplied by in `round` (from 1) of `rounds`. Cosine: Loshchilov and Hutter
  /// 2017, equation 5, without restarts, over the rounds after the warm-up.
  [[nodiscard]] double at(std::uint32_t round, std::uint32_t rounds) const;
};

/// "constant[:warmup=N]", "cosine[:floor=F,warmup=N]", "step[:every=N,factor=F,warmup=N]".
[[nodiscard]] Result<LearningRate> parse_schedule(std::string_view spec);

}  // namespace fl
