// SPDX-License-Identifier: Apache-2.0
// Medians: which of the middle two is taken, and that order does not matter.
#include "shared/base/median.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace fl {
namespace {

TEST_CASE("a median is the middle value, and of two the one that its name says") {
  struct Case {
    std::vector<std::uint64_t> values;
    std::uint64_t lower;
    std::uint64_t upper;
  };
  for (const Case& one : {Case{{7}, 7, 7}, Case{{9, 4}, 4, 9}, Case{{3, 1, 2}, 2, 2},
                          Case{{8, 1, 5, 3}, 3, 5}, Case{{5, 5, 1, 9, 5}, 5, 5}}) {
    CAPTURE(one.values.size());
    std::vector<std::uint64_t> values = one.values;
    std::ranges::sort(values);
    do {
      CHECK(lower_median(values) == one.lower);
      CHECK(upper_median(values) == one.upper);
    } while (std::ranges::next_permutation(values).found);
  }
}

}  // namespace
}  // namespace fl
