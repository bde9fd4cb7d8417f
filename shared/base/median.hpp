// SPDX-License-Identifier: Apache-2.0
// The median of values, always one of them: of an even number there are two in the middle, and each
// function says which one it takes. Pure; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fl {

/// The smaller of the middle two. `values` must not be empty, and has no NaN.
template <class T>
[[nodiscard]] T lower_median(std::vector<T> values) {
  FL_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The larger of the middle two. `values` must not be empty, and has no NaN.
template <class T>
[[nodiscard]] T upper_median(std::vector<T> values) {
  FL_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace fl
