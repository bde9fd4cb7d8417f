// SPDX-License-Identifier: Apache-2.0
#include "server/run/schedule.hpp"

#include "shared/base/spec/spec_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fl::server {

Result<LearningRate> parse_schedule(std::string_view spec) {
  FL_TRY(SpecOptions options, SpecOptions::parse(spec));
  LearningRate rate;
  using Shape = LearningRate::Shape;
  if (options.name() == "cosine") {
    rate.shape = Shape::cosine;
    rate.floor = options.number("floor", 0, 0, 1);
  } else if (options.name() == "step") {
    rate.shape = Shape::step;
    rate.every = options.count("every", 10, 1);
    rate.factor = options.number("factor", rate.factor, 1e-6, 1);
  } else if (options.name() != "constant") {
    return Error(Errc::invalid_input, fmt::format("there is no schedule '{}'; there are: constant "
                                                  "cosine step",
                                                  options.name()));
  }
  rate.warm_up = options.count("warmup", 0, 0);
  FL_CHECK(options.finish());
  return rate;
}

double LearningRate::at(std::uint32_t round, std::uint32_t rounds) const {
  FL_ASSERT(round >= 1);
  if (round <= warm_up) return static_cast<double>(round) / warm_up;
  const double past = round - warm_up - 1;
  switch (shape) {
    case Shape::cosine: {
      // As in PyTorch, the floor would be reached one round after the last. It may be 0, and a
      // round with a rate of 0 would be lost.
      const double span = std::max(1.0, static_cast<double>(rounds) - warm_up);
      const double part = std::min(past, span - 1) / span;
      return floor + (1 - floor) * (1 + std::cos(std::numbers::pi * part)) / 2;
    }
    case Shape::step: return std::pow(factor, std::floor(past / every));
    case Shape::constant: break;
  }
  return 1;
}

Result<LocalSteps> parse_steps_schedule(std::string_view spec) {
  FL_TRY(SpecOptions options, SpecOptions::parse(spec));
  LocalSteps steps;
  using Shape = LocalSteps::Shape;
  if (options.name() == "warmup") {
    steps.shape = Shape::warm_up;
    steps.rounds = options.count("rounds", 10, 1);
  } else if (options.name() == "post-local") {
    steps.shape = Shape::post_local;
    steps.from = options.count("from", 10, 1);
  } else if (options.name() == "adaptive") {
    steps.shape = Shape::adaptive;
  } else if (options.name() != "constant") {
    return Error(Errc::invalid_input, fmt::format("there is no schedule '{}'; there are: constant "
                                                  "warmup post-local adaptive",
                                                  options.name()));
  }
  FL_CHECK(options.finish());
  return steps;
}

std::uint32_t LocalSteps::at(std::uint32_t round, std::uint32_t steps,
                             std::span<const double> losses) const {
  FL_ASSERT(round >= 1 && steps >= 1);
  switch (shape) {
    case Shape::warm_up: {
      if (round >= rounds) return steps;
      const std::uint64_t grown = std::uint64_t{steps - 1} * (round - 1) / (rounds - 1);
      return 1 + static_cast<std::uint32_t>(grown);
    }
    case Shape::post_local: return round < from ? 1 : steps;
    case Shape::adaptive: {
      if (round == 1) return steps;
      FL_ASSERT(losses.size() >= round - 1);
      const double part = losses[round - 2] / losses[0];
      if (!(part < 1)) return steps;  // The loss did not fall, or is NaN.
      const double wanted = std::ceil(std::sqrt(std::max(part, 0.0)) * steps);
      return std::max(1u, static_cast<std::uint32_t>(wanted));
    }
    case Shape::constant: break;
  }
  return steps;
}

}  // namespace fl::server
