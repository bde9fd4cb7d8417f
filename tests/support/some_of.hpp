// SPDX-License-Identifier: Apache-2.0
// Many like cases of which one run of the tests takes some.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <random>
#include <ranges>
#include <string_view>
#include <vector>

namespace fl::test {

/// Every second one, from a random one on; all with FL_EVERY_STEP=1, as ./dev test --all sets it.
template <std::ranges::forward_range Cases>
[[nodiscard]] std::vector<std::ranges::range_value_t<Cases>> some_of(const Cases& cases) {
  const char* const wanted = std::getenv("FL_EVERY_STEP");
  const bool takes_all = wanted != nullptr && std::string_view(wanted) == "1";
  const std::size_t start = takes_all ? 0 : std::random_device()() % 2;
  std::vector<std::ranges::range_value_t<Cases>> out;
  std::size_t number = 0;
  for (const auto& one : cases) {
    if (takes_all || number % 2 == start) out.push_back(one);
    ++number;
  }
  return out;
}

}  // namespace fl::test
