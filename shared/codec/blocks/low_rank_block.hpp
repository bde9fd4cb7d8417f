// Blocks of a matrix that is sent as the product of two thin ones, M ~ L R: a row of L for each row
// of M, a column of R for each of its columns. A tensor of shape [d0, d1, ...] is the matrix of d0
// rows and d1 * ... columns. After the method id:
//
//   28 powersgd, 29 gradzip  u8 K, the rank, 1 to 64; of 29 in a tensor's first block then u64 key,
//       of which R follows (drawn_right); then, as a dense block of "lossless" has them, of 28 in a
//       tensor's first block R's K rows, and of each of L's K columns the rows that the block
//       touches
//
// A block may begin and end within a row of M. All blocks of a tensor have one id and K. What one
// takes to decode beside its own bytes is the R of its tensor, which the PayloadReader fetches.
//
// The R of gradzip follows from the seed that all updates of a round share (unless it is to be the
// update's own), so their Ls may be added up, and the sum decoded once (factor_sums.hpp).
#pragma once

#include "kernels/generic/matrix.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
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

namespace fl {

inline constexpr std::int32_t rank_max = 64;

/// Of both together: the bytes of a block are counted in 32 bits.
inline constexpr double factor_elements_max = 1 << 28;

/// The room that one block may need beyond its elements: the row in which it begins, and the row in
/// which it ends.
inline constexpr std::uint64_t low_rank_extra_bytes = 2 * rank_max * sizeof(float);

struct MatrixShape {
  std::uint64_t rows;
  std::uint64_t cols;
};

/// None: the tensor is to be sent dense, because it has one dimension or none, or because it has
/// fewer than min_ratio elements for each of its factors', or they more than factor_elements_max.
/// 1 <= rank.
[[nodiscard]] std::optional<MatrixShape> matrix_of(const Layout::Tensor& tensor, std::uint32_t rank,
                                                   double min_ratio);

/// R, of one tensor.
struct RightFactor {
  BlockFormat id;
  std::uint32_t rank;
  std::uint64_t key = 0;      // Of gradzip.
  std::vector<float> values;  // `rank` rows of the matrix' columns; of gradzip empty until drawn.
};

/// Rows of L.
struct FactorRows {
  std::uint32_t rank;
  std::uint64_t first;
  std::uint64_t count;
  std::span<const float> values;  // `rank` columns of `count`.
};

/// Of one tensor.
struct LowRankFactors {
  MatrixShape shape;
  RightFactor right;
  std::vector<float> left;  // `rank` columns of the matrix' rows.
  bool is_in_range = true;  // Whether all that decodes is finite.

  [[nodiscard]] MatrixSizes sizes() const { return {shape.rows, shape.cols, right.rank}; }
};

/// By tensor; those that are not there are sent dense.
struct LowRankPlan {
  std::map<std::uint32_t, LowRankFactors> tensors;
};

/// Makes vectors of n values each orthonormal, by modified Gram-Schmidt in double. One that depends
/// on those before it becomes zeros.
void orthonormalize(std::span<float> vectors, std::size_t n);

/// The key of a tensor's R, of all vectors with this shared seed.
[[nodiscard]] std::uint64_t shared_key(std::uint64_t shared_seed, std::uint32_t tensor);

/// Orthonormal rows of a uniformly random subspace, a function of the key and the sizes, of less
/// rank the first ones; but the first ones span what those of `start` do that are not all zeros.
[[nodiscard]] std::vector<float> drawn_right(std::uint64_t key, std::uint32_t rank,
                                             std::uint64_t cols, std::span<const float> start = {});

/// The most bytes of a block of a matrix with factors of this rank.
[[nodiscard]] std::size_t low_rank_bytes_max(BlockFormat id, std::uint32_t rank,
                                             const MatrixShape& shape, const Block& block);
/// Replaces `out` by the bytes of a block of the factors' matrix.
[[nodiscard]] Result<void> write_low_rank(const LowRankFactors& factors, const Layout& layout,
                                          const Block& block, EncodeScratch& scratch,
                                          std::vector<std::byte>& out);

[[nodiscard]] inline bool is_low_rank(Bytes block) {
  return !block.empty() && format_row(block).kind == FormatKind::low_rank;
}

/// The R of a tensor from the bytes of its first block, which need not be trusted. Errors are
/// corrupt.
[[nodiscard]] Result<RightFactor> read_right_factor(Bytes bytes, const Layout::Tensor& tensor,
                                                    const Block& first_block,
                                                    DecodeScratch& scratch);
/// Of gradzip: its values, unless they are there.
void draw_right(RightFactor& right, const Layout::Tensor& tensor);

/// The rows of L that a block touches, from bytes that need not be trusted; finite. `right` is of
/// the same tensor. Replaces `room`, where they lie then. Errors are corrupt.
[[nodiscard]] Result<FactorRows> read_rows(Bytes bytes, const Layout::Tensor& tensor,
                                           const Block& block, const RightFactor& right,
                                           std::vector<float>& room, DecodeScratch& scratch);

/// out += L R, from element `first` of the matrix on, which is in the first of the rows, as far as
/// `out` goes. `right`: rows of `cols` values. In one order, so it does not matter where the matrix
/// is cut.
void add_product(const FactorRows& left, std::span<const float> right, std::uint64_t cols,
                 std::uint64_t first, std::span<float> out);

/// Fills `out`, the block's elements, from bytes that need not be trusted. `right` is of the same
/// tensor, and is drawn if it has to be. May give values that are not finite. Errors are corrupt.
[[nodiscard]] Result<void> decode_low_rank(Bytes bytes, const Layout::Tensor& tensor,
                                           const Block& block, RightFactor& right,
                                           std::span<float> out, DecodeScratch& scratch);

}  // namespace fl
