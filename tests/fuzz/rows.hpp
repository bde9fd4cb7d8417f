// SPDX-License-Identifier: Apache-2.0
// Decodes with every row of the kernel table. All rows must give the same result.
#pragma once

#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fl::fuzz {

/// Whether the bits are equal, or both are NaN.
inline bool is_same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// Calls decode(out), which returns a Result<void>, once for each row. All must come to the same
/// verdict, and to the same values, which are returned.
template <class Decode>
std::optional<std::vector<float>> decode_with_all_rows(std::size_t elements, const Decode& decode) {
  std::optional<std::vector<float>> first;
  float filling = 0;  // Differs for each row, so that a value that a row did not write shows.
  for (const Kernels* row : all_kernels()) {
    force_kernels(*row);
    std::vector<float> out(elements, ++filling);
    const bool is_good = decode(std::span(out)).has_value();
    if (row == all_kernels().front()) {
      if (is_good) first = std::move(out);
      continue;
    }
    FL_ASSERT(is_good == first.has_value());
    if (is_good) FL_ASSERT(std::ranges::equal(out, *first, is_same));
  }
  return first;
}

}  // namespace fl::fuzz
