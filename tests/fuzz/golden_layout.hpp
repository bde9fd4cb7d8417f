// SPDX-License-Identifier: Apache-2.0
// The layout of the golden payloads (tests/codec/golden_test.cpp), which are the payloads' seeds.
#pragma once

#include "shared/params/layout.hpp"

namespace fl::fuzz {

inline const Layout& golden_layout() {
  static const Layout layout =
      Layout::make({{"layer.weight", {10, 30}}, {"layer.bias", {10}}, {"gain", {}}}).value();
  return layout;
}

}  // namespace fl::fuzz
