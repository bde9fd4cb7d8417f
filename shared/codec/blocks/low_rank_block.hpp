// SPDX-License-Identifier: Apache-2.0
// Low-rank blocks: a matrix M is sent as the product L R of two thin matrices. L has a row for each
// row of M, and R has a column for each column of M. A tensor of shape [d0, d1, ...] is a matrix of
// d0 rows and d1 * ... columns. After the format id:
//
//   28 powersgd, 29 gradzip
//       u8 K, the rank, 1 to 64
//       29, in the tensor's first block: u64 key, from which R follows (drawn_right)
//       as a block of "lossless": for 28, in the tensor's first block, the K rows of R; then from
//       each of the K columns of L the rows that the block touches
//
// A block may begin and end within a row of M. All blocks of a tensor have the same id and K. To
// decode a block one needs its bytes and the R of its tensor, which PayloadReader fetches.
//
// The R of gradzip follows from the seed that all updates of a round share, unless the spec says
// projection=own. So the Ls of several updates can be added up and the sum decoded once
// (factor_sums.hpp).
//
// All functions may run on any thread.
#pragma once

#include "kernels/generic/matrix.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/blocks/drawn_rights.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/compressor.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::codec {

inline constexpr std::int32_t rank_max = 64;

/// The most elements of L and R together. The size of a block must fit 32 bits.
inline constexpr double factor_elements_max = 1 << 28;

/// Memory that one block may need beyond its elements: for the row in which it begins, and for the
/// row in which it ends.
inline constexpr std::uint64_t low_rank_extra_bytes = 2 * rank_max * sizeof(float);

struct MatrixShape {
  std::uint64_t rows;
  std::uint64_t cols;
};

/// The shape of a tensor as a matrix; nullopt if it must be sent dense. That is so if it has fewer
/// than two dimensions or no elements, if L and R together have more than 1 / min_ratio of its
/// elements, or more than factor_elements_max. Requires: rank >= 1.
[[nodiscard]] std::optional<MatrixShape> matrix_of(const Layout::Tensor& tensor, std::uint32_t rank,
                                                   double min_ratio);

/// The right factor R of one tensor.
struct RightFactor {
  BlockFormat id;  // powersgd or gradzip.
  std::uint32_t rank;
  std::uint64_t key = 0;      // For gradzip.
  std::vector<float> values;  // [rank, columns]; empty for a gradzip factor that was read.
  DrawnRights::Values drawn;  // The values of that factor; null until draw_right().
};

/// Some consecutive rows of L.
struct FactorRows {
  std::uint32_t rank;
  std::uint64_t first;            // The index of the first row.
  std::uint64_t count;            // The number of rows.
  std::span<const float> values;  // [rank, count]: one column of L after the other.
};

/// Both factors of one tensor.
struct LowRankFactors {
  MatrixShape shape;
  RightFactor right;
  std::vector<float> left;  // [rank, rows]: one column of L after the other.
  bool is_in_range = true;  // Whether all values of L R are finite.

  [[nodiscard]] MatrixSizes sizes() const { return {shape.rows, shape.cols, right.rank}; }
};

/// The factors by tensor. Tensors without an entry are sent dense.
struct LowRankPlan {
  std::map<std::uint32_t, LowRankFactors> tensors;
};

/// Makes the vectors, of n values each, orthonormal by modified Gram-Schmidt in double. A vector
/// that depends linearly on those before it becomes zeros.
void orthonormalize(std::span<float> vectors, std::size_t n);

/// The key for the R of a tensor. All vectors with the same shared seed have the same key.
[[nodiscard]] std::uint64_t shared_key(std::uint64_t shared_seed, std::uint32_t tensor);

/// A right factor: `rank` orthonormal rows that span a uniformly random subspace, a function of the
/// key and `cols`. A smaller rank gives the first of these rows. If `start` has rows of `cols`
/// values, those that are not all zeros replace the first random rows before orthonormalize().
[[nodiscard]] std::vector<float> drawn_right(std::uint64_t key, std::uint32_t rank,
                                             std::uint64_t cols, std::span<const float> start = {});

/// The most bytes of a block of a matrix that is sent with factors of this rank.
[[nodiscard]] std::size_t low_rank_bytes_max(BlockFormat id, std::uint32_t rank,
                                             const MatrixShape& shape, const Block& block);
/// Encodes a block of the factors' matrix and replaces `out` by its bytes.
[[nodiscard]] Result<void> write_low_rank(const LowRankFactors& factors, const Layout& layout,
                                          const Block& block, EncodeScratch& scratch,
                                          std::vector<std::byte>& out);

[[nodiscard]] inline bool is_low_rank(Bytes block) {
  return !block.empty() && format_row(block).kind == FormatKind::low_rank;
}

/// Whether a tensor's first block has factors of this form. `shared_key`: the key of an R that the
/// sender shares with others. The bytes need not be trusted.
[[nodiscard]] bool has_factors(Bytes first_block, const FactorForm& form, std::uint64_t shared_key);

/// Reads the R of a tensor from its first block. The bytes need not be trusted. Errors: corrupt.
[[nodiscard]] Result<RightFactor> read_right_factor(Bytes bytes, const Layout::Tensor& tensor,
                                                    const Block& first_block,
                                                    DecodeScratch& scratch);
/// Returns the values of a factor that was read. For gradzip they come from `rights`, at the first
/// call; the factor then holds them.
[[nodiscard]] std::span<const float> draw_right(RightFactor& right, const Layout::Tensor& tensor,
                                                DrawnRights& rights);

/// Reads the rows of L that a block touches. They are finite. The result points into `room`, which
/// is replaced. `right` must be of the same tensor. The bytes need not be trusted. Errors: corrupt.
[[nodiscard]] Result<FactorRows> read_rows(Bytes bytes, const Layout::Tensor& tensor,
                                           const Block& block, const RightFactor& right,
                                           std::vector<float>& room, DecodeScratch& scratch);

/// out += the elements of L R from element `first` of the matrix on. `left` must have the rows of
/// all elements of `out`, beginning with that of `first`. `right` is [rank, cols]. The order of the
/// additions is fixed, so the result does not depend on where the matrix is cut into blocks.
void add_product(const FactorRows& left, std::span<const float> right, std::uint64_t cols,
                 std::uint64_t first, std::span<float> out);

/// Decodes a block into `out`. `right` must be of the same tensor; its values are drawn if needed,
/// by `rights`.
/// The decoded values may be infinite or NaN. The bytes need not be trusted. Errors: corrupt.
[[nodiscard]] Result<void> decode_low_rank(Bytes bytes, const Layout::Tensor& tensor,
                                           const Block& block, RightFactor& right,
                                           DrawnRights& rights, std::span<float> out,
                                           DecodeScratch& scratch);

}  // namespace fl::codec
