// The bytes and sizes of count sketches, and what is read from one. The arithmetic of one element
// is in kernels/generic/sketch.hpp, the codec in countsketch.cpp.
//
// Sizes are those of 65,536 elements; a shorter block has a share of them, and one of fewer than
// sketched_min elements has no sketch.
#pragma once

#include "kernels/generic/sketch.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fl {

inline constexpr std::size_t sketched_min = 256;  // Elements of a block.
inline constexpr std::uint32_t sketch_cells_max = part_elements_max / 2;

/// Of a block's share of what 65,536 elements have, rounded up.
[[nodiscard]] std::uint32_t share_of_block(std::uint32_t number, std::size_t elements);
[[nodiscard]] SketchShape share_of_block(const SketchShape& whole, std::size_t elements);

/// What a block's cells and signs follow from: its place in the model, and nothing else.
[[nodiscard]] std::uint64_t sketch_key(const Block& block);

/// The cells lie one row after the other.
struct SketchCells {
  SketchShape shape;
  std::uint64_t key;
  std::span<const float> cells;
};

/// What blocks of BlockFormat::countsketch_sum have behind their id, and those of countsketch
/// before a number more: u8 rows, u16 columns, u64 key. Then come the cells, as a block of
/// "lossless" has them.
inline constexpr std::size_t sketch_head_bytes = 1 + 2 + sizeof(std::uint64_t);

/// From `body`, what follows the id, with cells from `cells_at` on; all are finite, and lie in
/// `scratch`. Errors are corrupt.
[[nodiscard]] Result<SketchCells> read_sketch(Bytes body, std::size_t cells_at,
                                              DecodeScratch& scratch);

[[nodiscard]] inline bool is_summed_sketch(Bytes block) {
  return !block.empty() && format_of(block) == BlockFormat::countsketch_sum;
}

/// sketch::estimate_of() each of the block's elements. They lie in `room`. All that are not 0 count
/// where sketches are added up: of the k or columns largest alone less comes to a good end. (Ten
/// clients, a logistic model of Fashion-MNIST, dirichlet:0.3, twelve rounds, countsketch:5x4000,
/// two seeds: all 40 and 42 %, as many as columns 30 and 34, k 13 and 13; each decoded alone 41
/// and 44. With 100 clients 30 and 33, 26 and 28, 19 and 24; alone 33 and 37.)
[[nodiscard]] std::span<const float> sketch_estimates(const SketchCells& sketch,
                                                      std::size_t elements, SketchScratch& room);

}  // namespace fl
