// SPDX-License-Identifier: Apache-2.0
// The weighted sum of many updates in 64-bit fixed point. Integer sums do not depend on the order
// of arrival, on the number of threads, or on updates that were added and taken back: the same
// accepted updates give the same bits.
//
// Statistics (shared/params/layout.hpp) are few and may be large: variances of 1e8 beside gradients
// of 1e-4. Their sums have 128 bits and their own range; update norms leave them out.
//
// Low-rank matrices whose right factor is the same in all updates are added up undecoded, and their
// mean is decoded once (factor_sums.hpp). So are count sketches of one shape (sketch_sums.hpp).
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/sums/factor_sums.hpp"
#include "shared/codec/sums/fixed_point.hpp"
#include "shared/codec/sums/sketch_sums.hpp"
#include "shared/params/layout.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace fl {

/// The fixed point of statistics: magnitudes below 2^46 in steps of 2^-40, with weights that sum to
/// at most 2^40.
inline constexpr int statistic_range_log2 = 46;
inline constexpr int statistic_fraction_bits = 40;

/// The norms of an update without its statistics. Blocks that are added undecoded count in l2 with
/// the norm of their factor L, which differs from the matrix' only by rounding, or with what their
/// sketch estimates. They do not count in max_abs.
struct UpdateNorms {
  double l2 = 0;
  float max_abs = 0;
};

/// Changes the decoded values of an update, from element `first` on, before they are added. It must
/// always make the same change, because taking an update back calls it again.
using AdjustUpdate = std::function<Result<void>(std::uint64_t first, std::span<float> values)>;

/// Memory: 8 bytes per parameter and 24 per statistic; at most 2 more per parameter for factors
/// that are added undecoded, and about 4 for sketches; and one block for each running add(). The
/// layout must outlive the accumulator. Several threads may run add() at once, each with its own
/// reader; no other function may run beside an add().
class Accumulator {
 public:
  /// `shared_seed`: the seed that the updates share; without it no factors are added up undecoded.
  /// `sketches`: the Codec::summed_sketches() of the updates' codec.
  Accumulator(const Layout& layout, const FixedPoint& fixed,
              std::optional<std::uint64_t> shared_seed = std::nullopt,
              SummedSketches sketches = {});

  /// sums += weight * adjust(decode(update)), all of it or nothing: after an error, what was added
  /// is taken back exactly. A null `adjust` changes nothing. Returns the norms of what was added.
  ///
  /// Errors: those of the reader and of `adjust`; invalid_input for a weight that is not 1 to
  /// update_weight_max, and for a statistic out of range; too_large, naming tensor[index], for
  /// another value out of range; conflict if the weights would sum to more than weight_max. If the
  /// update becomes unreadable while it is taken back, the sums are lost: broken() is true and
  /// every add() fails until reset().
  [[nodiscard]] Result<UpdateNorms> add(PayloadReader& update, std::uint64_t weight,
                                        const AdjustUpdate& adjust = nullptr);

  [[nodiscard]] std::uint64_t total_weight() const { return total_weight_; }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const FixedPoint& fixed_point() const { return fixed_; }

  /// out[i] = (sum of weight * value of element first + i) / divisor, rounded from double to fp32.
  /// With total_weight() as the divisor this is the weighted mean. divisor > 0.
  void mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// Sets all sums and weights to 0.
  void reset(const FixedPoint& fixed, std::optional<std::uint64_t> shared_seed = std::nullopt,
             SummedSketches sketches = {});

 private:
  Result<Scan> add_block(PayloadReader& update, std::uint64_t index, std::int64_t weight,
                         const AdjustUpdate& adjust, std::span<float> values);
  Result<void> take_back(PayloadReader& update, std::uint64_t blocks, std::int64_t weight,
                         const AdjustUpdate& adjust, std::span<float> values);
  Result<void> reserve(std::uint64_t weight);
  [[nodiscard]] bool is_of_statistics(std::uint64_t element) const {
    return element >= layout_.statistics().begin && element < layout_.statistics().end;
  }
  /// Cuts `values`, which begin at element `at`, at the borders of the stripes, and calls
  /// use(first element, values) for each piece while it holds the stripe's lock.
  template <class Use>
  void for_each_stripe(std::uint64_t at, std::span<const float> values, const Use& use);
  Result<Scan> add_selected(std::uint64_t flat, const SelectedValues& selected,
                            std::int64_t weight);
  [[nodiscard]] Error out_of_range(std::uint64_t flat, float value, int range_log2) const;

  __extension__ using Wide = __int128;

  const Layout& layout_;
  FixedPoint fixed_;
  HugeVector<std::int64_t> sums_;
  std::vector<Wide> statistics_;  // The sums of layout_.statistics().
  FactorSums factors_;
  SketchSums sketches_;
  std::atomic<std::uint64_t> total_weight_ = 0;
  std::atomic<bool> broken_ = false;
  std::array<std::mutex, 64> stripes_;  // Each stripe of elements has one of these locks.
};

}  // namespace fl
