// SPDX-License-Identifier: Apache-2.0
// The bytes and sizes of count sketches, and the estimates that are read from one. The arithmetic
// of one element is in kernels/generic/sketch.hpp, the codec in countsketch.cpp.
//
// A spec gives the sizes for a block of 65,536 elements. A shorter block has proportionally fewer
// columns, and a block of fewer than sketched_min elements has no sketch.
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

namespace fl::codec {

inline constexpr std::size_t sketched_min = 256;  // Elements in a block.
inline constexpr std::uint32_t sketch_cells_max = part_elements_max / 2;

/// number * elements / 65,536, rounded up; for a shape, with its columns as the number.
[[nodiscard]] std::uint32_t share_of_block(std::uint32_t number, std::size_t elements);
[[nodiscard]] SketchShape share_of_block(const SketchShape& whole, std::size_t elements);

/// The key for the cells and signs of a block's elements. It depends only on the block's place in
/// the model, so that all clients and rounds have the same.
[[nodiscard]] std::uint64_t sketch_key(const Block& block);

/// A sketch that was read. Its cells lie row by row.
struct SketchCells {
  SketchShape shape;
  std::uint64_t key;
  std::span<const float> cells;
};

/// The head of a sketch's block, after the id: u8 rows, u16 columns, u64 key. In format 39
/// (countsketch_sum) the cells follow as a block of "lossless"; in format 30 a binary32 number is
/// in between (countsketch.cpp).
inline constexpr std::size_t sketch_head_bytes = 1 + 2 + sizeof(std::uint64_t);

/// Reads a sketch. `body` is the block without its id; it need not be trusted. The cells begin at
/// body[cells_at]. They are finite, and the result points into `scratch`. Errors: corrupt.
[[nodiscard]] Result<SketchCells> read_sketch(Bytes body, std::size_t cells_at,
                                              DecodeScratch& scratch);

[[nodiscard]] inline bool is_summed_sketch(Bytes block) {
  return !block.empty() && format_of(block) == BlockFormat::countsketch_sum;
}

/// sketch::estimate_of() for each of the block's elements. The result points into `room`.
///
/// Sums of sketches use all estimates that are not 0, because a model learns less from only the
/// largest ones. Measured: a logistic model of Fashion-MNIST, 10 clients, dirichlet:0.3, 12 rounds,
/// countsketch:5x4000, two seeds. All estimates give 40 and 42 % accuracy; only as many as there
/// are columns 30 and 34 %; only the k largest 13 and 13 %; each update decoded alone 41 and 44 %.
/// With 100 clients: 30 and 33, 26 and 28, 19 and 24; alone 33 and 37 %.
[[nodiscard]] std::span<const float> sketch_estimates(const SketchCells& sketch,
                                                      std::size_t elements, SketchScratch& room);

}  // namespace fl::codec
