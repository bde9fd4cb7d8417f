// SPDX-License-Identifier: Apache-2.0
// The layout of a run that sends nothing besides the model.
#pragma once

#include "shared/algorithm/strategy.hpp"

namespace fl::test {

inline RunLayout run_of(const Layout& model) {
  return run_layout(model, *parse_strategy("fedavg").value()).value();
}

}  // namespace fl::test
