// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/sketch_block.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/core/block_key.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

namespace {

/// The seed that all clients and rounds share.
constexpr std::uint64_t shared_seed = 0;

/// Writes into `estimates` the value that each element reads from one row.
void read_row(std::span<const std::uint32_t> words, std::span<const float> cells,
              std::span<float> estimates) {
  for (std::size_t i = 0; i < estimates.size(); ++i) {
    estimates[i] = sketch::signed_by(words[i], cells[sketch::column_of(words[i], cells.size())]);
  }
}

/// Does sketch::estimate() for each element at once. `read` has the values that each row reads,
/// [rows, elements]. The result replaces the middle row.
std::span<const float> estimate_all(std::span<float> read, std::size_t rows) {
  const std::size_t n = read.size() / rows;
  for (std::size_t pass = 0; pass < rows; ++pass) {
    for (std::size_t row = pass % 2; row + 1 < rows; row += 2) {
      float* const lower = read.data() + row * n;
      float* const upper = lower + n;
      for (std::size_t i = 0; i < n; ++i) sketch::order(lower[i], upper[i]);
    }
  }
  float* const middle = read.data() + rows / 2 * n;
  const float* const below = middle - n;
  const float* const above = middle + n;
  for (std::size_t i = 0; i < n; ++i) middle[i] = sketch::backed(below[i], middle[i], above[i]);
  return {middle, n};
}

}  // namespace

std::uint32_t share_of_block(std::uint32_t number, std::size_t elements) {
  return static_cast<std::uint32_t>((std::uint64_t{number} * elements + part_elements_max - 1) /
                                    part_elements_max);
}

SketchShape share_of_block(const SketchShape& whole, std::size_t elements) {
  return {.rows = whole.rows, .columns = share_of_block(whole.columns, elements)};
}

std::uint64_t sketch_key(const Block& block) {
  return block_key(shared_seed, KeyFamily::quantizer, block);
}

Result<SketchCells> read_sketch(Bytes body, std::size_t cells_at, DecodeScratch& scratch) {
  if (body.size() < cells_at) return Error(Errc::corrupt, "the sketch's head is cut off");
  const std::uint32_t rows = load<std::uint8_t>(body, 0);
  const std::uint32_t columns = load<std::uint16_t>(body, 1);
  if (rows < sketch::rows_min || rows > sketch::rows_max || rows % 2 == 0 || columns == 0 ||
      rows * columns > sketch_cells_max) {
    return Error(Errc::corrupt, fmt::format("a sketch of {} rows of {} cells", rows, columns));
  }
  std::vector<float>& room = scratch.sketch.cells;
  room.resize(std::max<std::size_t>(room.size(), rows * columns));
  const auto cells = std::span(room).first(rows * columns);
  const Bytes coded = body.subspan(cells_at);
  FL_CHECK(is_sparse(coded) ? decode_sparse(coded, cells, scratch)
                            : decode_lossless_block(coded, cells, scratch));
  if (!all_finite(cells)) return Error(Errc::corrupt, "a cell of the sketch is not finite");
  return SketchCells{.shape = {.rows = rows, .columns = columns},
                     .key = load<std::uint64_t>(body, 3),
                     .cells = cells};
}

std::span<const float> sketch_estimates(const SketchCells& sketch, std::size_t elements,
                                        SketchScratch& room) {
  const std::size_t rows = sketch.shape.rows;
  room.words.resize(std::max(room.words.size(), elements));
  const auto words = std::span(room.words).first(elements);
  room.estimates.resize(rows * elements);
  for (std::size_t row = 0; row < rows; ++row) {
    kernels().random_words(sketch.key, row, words.data(), elements);
    read_row(words, sketch.cells.subspan(row * sketch.shape.columns, sketch.shape.columns),
             std::span(room.estimates).subspan(row * elements, elements));
  }
  return estimate_all(room.estimates, rows);
}

}  // namespace fl::codec
