// Sums of matrices of low rank that are not decoded: where the updates of a round share R
// (low_rank_block.hpp), sum w_k (L_k R) = (sum w_k L_k) R. So an update costs what its factor has,
// not what its matrix has, and the matrix is made once, in the mean. As all that a round adds up,
// in fixed point: no order shows.
//
// R has orthonormal rows, so a matrix' norm is that of its L, and a value of L is at most
// sqrt(columns) times the largest of its matrix' row: that is how much wider these sums' range is,
// and their steps. In a matrix' value each is multiplied by one of R's, about 1 / sqrt(columns): so
// it is off by about what a decoded one is, times sqrt(rank).
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/sums/fixed_point.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

namespace fl {

/// Memory: of each tensor of which there is something, 8 bytes for each element of the first
/// factor and 4 for each of the second. Refers to the layout, which must outlive it. add() may run
/// on several threads at once; everything else only while no add() runs.
class FactorSums {
 public:
  /// The seed that the updates share; none: there are no keys.
  FactorSums(const Layout& layout, const FixedPoint& fixed,
             std::optional<std::uint64_t> shared_seed)
      : layout_(layout), fixed_(fixed), shared_seed_(shared_seed) {}

  /// Of the R that the updates have of this tensor.
  [[nodiscard]] std::optional<std::uint64_t> key_of(std::uint32_t tensor) const;

  /// Adds `weight` times the rows that begin in the block, of an update with this key: each row of
  /// the matrix is added with the block that it begins in. Of ranks that differ the largest is
  /// kept; the others lie in its first columns. Returns their sum of squares. An error, too_large
  /// for a value out of range (naming tensor[index]), has added nothing.
  [[nodiscard]] Result<Scan> add(const Block& block, const FactorRows& rows, std::int64_t weight);

  /// out += (sum of weight * matrix, from element `first` of the layout on) / divisor.
  void add_mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// All sums are 0 again; memory that was not used since the last time is given back.
  void reset(const FixedPoint& fixed, std::optional<std::uint64_t> shared_seed);

 private:
  struct Sums {
    MatrixShape shape{};
    std::uint32_t rank = 0;         // 0: there is nothing.
    HugeVector<std::int64_t> left;  // `rank` columns of the matrix' rows.
  };
  /// What has this rank at least.
  Sums& sums_of(std::uint32_t tensor, const MatrixShape& shape, std::uint32_t rank);
  /// The second factor, which is drawn when it is wanted first.
  [[nodiscard]] std::span<const float> right_of(std::uint32_t tensor, const Sums& sums) const;
  /// By how many powers of two the range is wider.
  [[nodiscard]] int widened_log2(std::uint64_t cols) const;

  const Layout& layout_;
  FixedPoint fixed_;
  std::optional<std::uint64_t> shared_seed_;
  std::map<std::uint32_t, Sums> tensors_;
  mutable std::map<std::uint32_t, std::vector<float>> rights_;  // By tensor.
  mutable std::mutex mutex_;
};

}  // namespace fl
