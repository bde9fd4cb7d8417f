// SPDX-License-Identifier: Apache-2.0
// The weighted sum of many updates in 64-bit integers. Integer sums do not depend on the order of
// arrival, on the number of threads, or on updates that were added and taken back: the same
// accepted updates give the same bits. sum_range.hpp says how exact the mean is.
//
// Low-rank matrices whose right factor is the same in all updates are added up undecoded, and their
// mean is decoded once (factor_sums.hpp). So are count sketches of one shape (sketch_sums.hpp).
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "server/sums/factor_sums.hpp"
#include "server/sums/sketch_sums.hpp"
#include "server/sums/sum_range.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/layout.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace fl::server {

/// The norms of an update without its statistics. Blocks that are added undecoded count in l2 with
/// the norm of their factor L, which differs from the matrix' only by rounding, or with the
/// estimate from their sketch. They do not count in max_abs.
struct UpdateNorms {
  double l2 = 0;
  float max_abs = 0;
};

/// Changes the decoded values of an update, from element `first` on, before they are added. It must
/// always make the same change, because taking an update back calls it again.
using AdjustUpdate = std::function<Result<void>(std::uint64_t first, std::span<float> values)>;

/// Memory: 8 bytes per parameter; at most 2 more per parameter for factors that are added
/// undecoded, and about 4 for sketches; 21 bytes for each range of up to 65,536 elements; and one
/// block for each running add(). The layout must outlive the accumulator. add(), take_back() and
/// count() may run at once on several threads, each with its own reader; the other functions only
/// while none of these runs.
class Accumulator {
 public:
  /// `expected_weight`: the total weight that is expected; only speed depends on it. `shared_seed`:
  /// the seed that the updates share; without it no factors are added up undecoded. `sketches`: the
  /// Codec::summed_sketches() of the updates' codec.
  Accumulator(const Layout& layout, std::uint64_t expected_weight,
              std::optional<std::uint64_t> shared_seed = std::nullopt,
              codec::SummedSketches sketches = {});

  /// An update that is in the sums.
  struct Added {
    UpdateNorms norms;
    Adding::Entered entered;
  };
  /// sums += weight * adjust(decode(update)), all of it or nothing: after an error, what was added
  /// is taken back exactly. A null `adjust` changes nothing. Then the caller decides: count(), or
  /// take_back().
  ///
  /// Errors: those of the reader and of `adjust`; invalid_input for a weight that is not 1 to
  /// update_weight_max, and, naming tensor[index], for a value that is not finite after `adjust`;
  /// conflict if the weights would sum to more than total_weight_max. If the update becomes
  /// unreadable while it is taken back, the sums are lost: broken() is true and every add() fails
  /// until reset().
  [[nodiscard]] Result<Added> add(codec::PayloadReader& update, std::uint64_t weight,
                                  const AdjustUpdate& adjust = nullptr);
  /// Notes that the update counts.
  void count(const Added& added);
  /// Takes an update, the same as in add(), out of the sums, exactly. Errors: those of the reader
  /// and of `adjust`; then broken() is true.
  [[nodiscard]] Result<void> take_back(codec::PayloadReader& update, std::uint64_t weight,
                                       const AdjustUpdate& adjust = nullptr);

  /// Does something with one update; the argument of what settle() calls.
  using AddUpdate = std::function<Result<void>(codec::PayloadReader& update, std::uint64_t weight,
                                               const AdjustUpdate& adjust)>;
  /// Gives all sums their final units, after the last count(). If some sums have another unit,
  /// calls visit(again), which must call again() with each of the updates that count, in any order.
  /// Only the blocks that need it are decoded. Errors: those of visit(); then the sums are not
  /// final, and settle() may be called again.
  [[nodiscard]] Result<void> settle(const std::function<Result<void>(const AddUpdate&)>& visit);

  [[nodiscard]] std::uint64_t total_weight() const { return weight_.total; }
  [[nodiscard]] bool broken() const { return broken_; }

  /// out[i] = (sum of weight * value of element first + i) / divisor, rounded from double to fp32.
  /// With total_weight() as the divisor this is the weighted mean. divisor > 0. Only while the sums
  /// are final.
  void mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// Sets all sums and weights to 0. The sums are final.
  void reset(std::uint64_t expected_weight, std::optional<std::uint64_t> shared_seed = std::nullopt,
             codec::SummedSketches sketches = {});

 private:
  Result<Scan> add_block(codec::PayloadReader& update, std::uint64_t index, Adding& adding,
                         const AdjustUpdate& adjust, std::span<float> values);
  Result<void> take_back_blocks(codec::PayloadReader& update, std::uint64_t blocks,
                                std::uint64_t weight, const AdjustUpdate& adjust,
                                std::span<float> values);
  Result<void> reserve(std::uint64_t weight);
  [[nodiscard]] bool is_of_statistics(std::uint64_t element) const {
    return element >= layout_.statistics().begin && element < layout_.statistics().end;
  }
  template <class Use>
  void for_each_range(const codec::Block& block, const Use& use);
  [[nodiscard]] Mutex& lock_of(std::uint64_t range) { return locks_[range % locks_.size()]; }
  void add_values(const codec::Block& block, std::span<const float> values, float max_abs,
                  Adding& adding);
  Scan add_selected(const codec::Block& block, const codec::SelectedValues& selected,
                    Adding& adding);
  void clear_old(std::uint64_t range);
  [[nodiscard]] bool begin_again();
  Result<void> add_again(codec::PayloadReader& update, std::uint64_t weight,
                         const AdjustUpdate& adjust);
  [[nodiscard]] bool is_again(const codec::Block& block) const;
  [[nodiscard]] std::vector<float> room_for(const codec::PayloadReader& update) const;

  const Layout& layout_;
  codec::BlockMap map_;  // The block map of the sums: each block has a range.
  RoundWeight weight_;
  HugeVector<std::int64_t> sums_;
  std::vector<SumRange> ranges_;
  /// For each range, whether its sums are still those of an earlier round, and count as 0. They are
  /// set to 0 just before the first addition, which then finds them in the cache.
  std::vector<char> are_old_;
  FactorSums factors_;
  SketchSums sketches_;
  std::atomic<bool> broken_ = false;
  bool is_final_ = true;
  /// A range, with its sums, is used under lock_of() its index. Which lock that is follows only
  /// when the program runs, and settle(), mean() and reset() run alone and take none, so no
  /// annotation says what is guarded.
  std::array<Mutex, 64> locks_;
  Mutex count_lock_;  // For SumRange::count().
};

}  // namespace fl::server
