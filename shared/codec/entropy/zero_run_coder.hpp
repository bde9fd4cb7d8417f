// Quantized levels of which few are not 0, by the runs of zeros between them: shorter than an
// entropy code of all (level_coder.hpp), whose states alone have 128 bytes in a large block and
// whose frequencies can't be below 2^-12. A list is a u16, how many of a number of elements are
// meant, and unless there are none their indices (index_coder.hpp). The bytes:
//
//   of each class (level_coder.hpp), the last one first, the list of those that are not 0, by their
//       place among the class's levels; all of these together, in that order, are the levels
//   for each size from 1 on, up to S - 1, the list of those that are larger, by their place among
//       those that are not smaller; the first empty one is the last
//   of one class a bit for each level, 1 for negative, lowest bits first, zeros to a whole byte; of
//       several classes the list of the negative ones, of which there are few (dither() in
//       kernels.hpp)
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace fl {

/// Whether runs are the shorter code: of more levels that are not 0 the entropy code is, as Golomb
/// codes lose 1% there.
[[nodiscard]] constexpr bool is_for_runs(std::uint64_t elements, std::uint64_t zeros) {
  return (elements - zeros) * 16 < elements;
}

/// Calls use(i) for each level that is not 0, in order. Fast where they are few.
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

/// Appends the levels, if they are for runs and bit fields (kernels/generic/pack.hpp) are not
/// shorter; else returns false. 1 <= levels, |level| <= levels <= rans_levels_max; at most
/// block_elements_max of them.
[[nodiscard]] bool append_runs(std::span<const std::int16_t> x, std::int32_t levels,
                               std::vector<std::byte>& out, const LevelClasses& classes = {});

/// Levels that are not 0, and which ones they are.
struct FewLevels {
  std::vector<std::uint32_t> indices;  // Ascending.
  std::vector<std::int16_t> levels;
};
/// read_runs() of one class, without the zeros.
[[nodiscard]] std::optional<FewLevels> read_few(Bytes bytes, std::int32_t levels,
                                                std::size_t elements);

/// Fills `out` from bytes that need not be trusted; false unless they are the levels of so many
/// elements, to the last byte. |level| <= levels then. 1 <= levels <= rans_levels_max.
[[nodiscard]] bool read_runs(Bytes bytes, std::int32_t levels, std::span<std::int16_t> out,
                             const LevelClasses& classes = {});

}  // namespace fl
