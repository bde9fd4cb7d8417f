// SPDX-License-Identifier: Apache-2.0
// Sums of low-rank matrices that stay undecoded. If the updates of a round share the right factor R
// (low_rank_block.hpp), then sum w_k (L_k R) = (sum w_k L_k) R. So adding an update costs as much
// as its factor L, not as its matrix, and only the mean is multiplied with R. All sums of a tensor
// are multiples of one unit (sum_range.hpp), so the order of the updates does not show.
//
// R has orthonormal rows. So L has the same norm as its matrix, and a value of L is at most
// sqrt(columns) times the largest value in its row of the matrix. In the product with R each
// rounding error is multiplied by a value of about 1 / sqrt(columns). So a value of the matrix has
// about the error that it would have decoded, times sqrt(rank).
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "kernels/kernels.hpp"
#include "server/sums/sum_range.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace fl::server {

/// Memory: for each tensor with a sum, 8 bytes per element of L and 4 per element of R. The layout
/// must outlive it. Several threads may run add() at once; no other function may run beside an
/// add().
class FactorSums {
 public:
  /// `shared_seed`: the seed that the updates share; without it there are no keys.
  FactorSums(const Layout& layout, std::optional<std::uint64_t> shared_seed)
      : layout_(layout), shared_seed_(shared_seed) {}

  /// The key of the R that the updates share for this tensor.
  [[nodiscard]] std::optional<std::uint64_t> key_of(std::uint32_t tensor) const;

  /// Adds the weighted rows of L that begin in the block, of an update with this tensor's key. (A
  /// row that began in the block before was added with that block.) If updates have
  /// different ranks, the sums have the largest one, and smaller ones use its first columns.
  /// Returns the rows' sum of squares.
  Scan add(const codec::Block& block, const codec::FactorRows& rows, Adding& adding);

  /// Sets the sums that are not final to 0, in their final unit. Returns whether there are any.
  [[nodiscard]] bool begin_again(std::uint64_t total_weight);
  /// Whether begin_again() set this tensor's sums to 0.
  [[nodiscard]] bool is_again(std::uint32_t tensor) const {
    const auto found = tensors_.find(tensor);
    return found != tensors_.end() && found->second.range.is_again();
  }

  /// out += (sum of weight * matrix, from element `first` of the layout on) / divisor.
  void add_mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// Sets all sums to 0. Frees the memory of sums that were not used since the last reset().
  void reset(std::optional<std::uint64_t> shared_seed);

 private:
  struct Sums {
    codec::MatrixShape shape{};
    std::uint32_t rank = 0;  // 0: there is no sum.
    SumRange range;
    HugeVector<std::int64_t> left;  // The sum of L: `rank` columns, a value for each matrix row.
  };
  /// The sums of a tensor, with at least this rank.
  Sums& sums_of(std::uint32_t tensor, const codec::MatrixShape& shape, std::uint32_t rank);
  /// R of a tensor. It is drawn at the first call.
  [[nodiscard]] std::span<const float> right_of(std::uint32_t tensor, const Sums& sums) const;

  const Layout& layout_;
  std::optional<std::uint64_t> shared_seed_;
  /// add() changes it under mutex_. The other functions run while no add() does, and some read it
  /// without the lock, which is why no annotation says so.
  std::map<std::uint32_t, Sums> tensors_;
  /// Each tensor's R.
  mutable std::map<std::uint32_t, std::vector<float>> rights_ FL_GUARDED_BY(mutex_);
  mutable Mutex mutex_;
};

}  // namespace fl::server
