// SPDX-License-Identifier: Apache-2.0
// Codes quantized levels from -S to S that are mostly 0, by the runs of zeros between the others.
// That is shorter than an entropy code of all levels (level_coder.hpp): there the states alone take
// 128 bytes in a large block, and frequencies can't be below 2^-12.
//
// A list here means a subset of n numbered elements: a u16 with its size, then its indices if it is
// not empty (index_coder.hpp). The bytes:
//
//   for each class (level_coder.hpp), the last class first: the list of its levels that are not 0,
//       numbered within the class. All of these levels, in that order, are the nonzero levels
//   for each size s = 1, 2, ... S - 1: of the nonzero levels whose size is at least s, the list of
//       those whose size is larger. The first empty list is the last one
//   the signs. With one class: a bit for each nonzero level, 1 for negative, lowest bits first,
//       zeros to a whole byte. With several classes: the list of the negative levels, because there
//       are few (dither() in kernels.hpp)
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace fl::codec {

/// Whether runs are the shorter code. With more nonzero levels the entropy code is shorter, because
/// Golomb codes lose 1% there.
[[nodiscard]] constexpr bool is_for_runs(std::uint64_t elements, std::uint64_t zeros) {
  return (elements - zeros) * 16 < elements;
}

/// Calls use(i) for each level that is not 0, in order. Fast if they are few.
template <class Use>
void for_each_not_zero(std::span<const std::int16_t> levels, const Use& use) {
  constexpr std::size_t at_once = 8;
  std::size_t i = 0;
  for (; i + at_once <= levels.size(); i += at_once) {
    std::uint64_t four[2];
    static_assert(sizeof four == at_once * sizeof(std::int16_t));
    std::memcpy(four, levels.data() + i, sizeof four);
    if ((four[0] | four[1]) == 0) continue;
    for (std::size_t k = i; k < i + at_once; ++k) {
      if (levels[k] != 0) use(k);
    }
  }
  for (; i < levels.size(); ++i) {
    if (levels[i] != 0) use(i);
  }
}

/// Appends the levels if is_for_runs() and if the code is shorter than bit fields
/// (kernels/generic/pack.hpp). Otherwise returns false and leaves `out` unchanged. 1 <= levels,
/// |level| <= levels <= rans_levels_max; `x` has at most block_elements_max levels.
[[nodiscard]] bool append_runs(std::span<const std::int16_t> x, std::int32_t levels,
                               std::vector<std::byte>& out, const LevelClasses& classes = {});

/// The levels that are not 0, and their indices.
struct FewLevels {
  std::vector<std::uint32_t> indices;  // Ascending.
  std::vector<std::int16_t> levels;
};
/// read_runs() for one class, without the zeros. nullopt: the bytes are damaged.
[[nodiscard]] std::optional<FewLevels> read_few(Bytes bytes, std::int32_t levels,
                                                std::size_t elements);

/// Decodes `bytes`, which need not be trusted, into `out`; then |level| <= levels. Returns false
/// unless they code out.size() levels and no byte is left over. 1 <= levels <= rans_levels_max.
[[nodiscard]] bool read_runs(Bytes bytes, std::int32_t levels, std::span<std::int16_t> out,
                             const LevelClasses& classes = {});

}  // namespace fl::codec
