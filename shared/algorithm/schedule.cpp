#include "shared/algorithm/schedule.hpp"

#include "shared/algorithm/spec_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fl {

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
      const double span = std::max(1.0, static_cast<double>(rounds) - warm_up - 1);
      const double part = std::min(1.0, past / span);
      return floor + (1 - floor) * (1 + std::cos(std::numbers::pi * part)) / 2;
    }
    case Shape::step: return std::pow(factor, std::floor(past / every));
    case Shape::constant: break;
  }
  return 1;
}

}  // namespace fl
