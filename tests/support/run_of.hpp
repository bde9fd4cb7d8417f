// The layout of a run in which nothing travels with the model.
#pragma once

#include "shared/algorithm/strategy.hpp"

#include <utility>

namespace fl::test {

inline RunLayout run_of(Layout model) {
  const std::uint64_t elements = model.elements();
  return {std::move(model), elements, 0, {{false, elements}}};
}

}  // namespace fl::test
