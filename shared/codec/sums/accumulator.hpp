// The weighted sum of many updates in 64-bit fixed point. Integer sums do not depend on the order
// of arrival, on the number of threads, or on what was added and taken back in between: the same
// accepted updates give the same bits.
//
// Statistics (shared/params/layout.hpp), which are few, may be of any size: variances of 1e8 beside
// gradients of 1e-4. Their sums have 128 bits, and neither range nor norms are about them.
//
// Matrices of low rank whose second factor all updates share are added up undecoded, and decoded
// once, in the mean (factor_sums.hpp); so are count sketches of one shape (sketch_sums.hpp).
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

/// Of statistics: magnitudes below 2^46 in steps of 2^-40, in sums of weights up to 2^40.
inline constexpr int statistic_range_log2 = 46;
inline constexpr int statistic_fraction_bits = 40;

/// Of all but the statistics. What is added undecoded counts with the norms of its factor, which
/// has the same l2 but for rounding, or with what its sketch estimates; to max_abs it adds nothing.
struct UpdateNorms {
  double l2 = 0;
  float max_abs = 0;
};

/// Changes the decoded values of an update, from element `first` on, before they are added: always
/// in the same way, or an update could not be taken back.
using AdjustUpdate = std::function<Result<void>(std::uint64_t first, std::span<float> values)>;

/// Memory: 8 bytes per parameter, 24 per statistic, at most 2 more per parameter for factors that
/// are added undecoded, and about 4 for sketches, and a block for each add() under way. Refers to
/// the layout, which must outlive it. add() may run on several threads at once, with a reader each;
/// everything else only while no add() runs.
class Accumulator {
 public:
  /// `shared_seed`: of the updates, for factors that can be added up undecoded; none: none are.
  /// `sketches`: what their codec says of these.
  Accumulator(const Layout& layout, const FixedPoint& fixed,
              std::optional<std::uint64_t> shared_seed = std::nullopt,
              SummedSketches sketches = {});

  /// sums += weight * adjust(decode(update)), all of it or nothing: on error what was added is
  /// taken back exactly. Without `adjust` it is what was decoded. The norms are of what is added.
  /// Errors: what the reader and `adjust` find; invalid_input for a weight that is not 1 to
  /// update_weight_max, and for a statistic out of range; too_large for another value out of range
  /// (naming tensor[index]); conflict when the weights would pass weight_max. Should the update
  /// become unreadable while it is taken back, the sums are lost: broken() is true and every add()
  /// fails until reset().
  [[nodiscard]] Result<UpdateNorms> add(PayloadReader& update, std::uint64_t weight,
                                        const AdjustUpdate& adjust = nullptr);

  [[nodiscard]] std::uint64_t total_weight() const { return total_weight_; }
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] const FixedPoint& fixed_point() const { return fixed_; }

  /// out[i] = (sum of weight * value of element first + i) / divisor. With total_weight() as the
  /// divisor: the weighted mean. Rounded to fp32 from a double; divisor > 0.
  void mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// All sums and weights are 0 again.
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
  /// Calls use(first element, values) for what of `values`, from element `at` on, lies in each
  /// stripe, with its lock.
  template <class Use>
  void for_each_stripe(std::uint64_t at, std::span<const float> values, const Use& use);
  Result<Scan> add_selected(std::uint64_t flat, const SelectedValues& selected,
                            std::int64_t weight);
  [[nodiscard]] Error out_of_range(std::uint64_t flat, float value, int range_log2) const;

  __extension__ using Wide = __int128;

  const Layout& layout_;
  FixedPoint fixed_;
  HugeVector<std::int64_t> sums_;
  std::vector<Wide> statistics_;  // Those of layout_.statistics().
  FactorSums factors_;
  SketchSums sketches_;
  std::atomic<std::uint64_t> total_weight_ = 0;
  std::atomic<bool> broken_ = false;
  std::array<std::mutex, 64> stripes_;  // A stripe of elements belongs to one of these.
};

}  // namespace fl
