// SPDX-License-Identifier: Apache-2.0
// Sums of count sketches that stay undecoded. A sketch is linear, so the sum of the updates'
// sketches is the sketch of their sum, and only the mean is read (Rothchild 2020, "FetchSGD:
// communication-efficient federated learning with sketching"). So adding an update costs as much as
// its cells. All sums of a block are multiples of one unit (sum_range.hpp), so the order of the
// updates does not show.
//
// Only sketches of the shapes that the round's codec makes are added up, one per block. So other
// codecs' sketches take no memory here, and it does not matter which update arrives first.
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "kernels/kernels.hpp"
#include "server/sums/sum_range.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace fl::server {

/// Memory: for each block with a sum, 8 bytes per cell, which is at most about 4 per element.
/// Several threads may run add() at once, or add_mean() while no add()
/// runs; any other function must run alone.
class SketchSums {
 public:
  explicit SketchSums(codec::SummedSketches sketches) : sketches_(std::move(sketches)) {}

  /// The shape that a sketch of this block must have to be added up. `block_elements`: the most
  /// elements of a block in the payload. nullopt: no sketch of this block can be added up.
  [[nodiscard]] std::optional<codec::SketchShape> shape_of(const codec::Block& block,
                                                           std::uint32_t block_elements) const;

  /// Adds the weighted sketch, which must have the shape_of() the block. Returns an estimate of the
  /// sum of squares of the sketched values: that of a row's cells, averaged over the rows.
  Scan add(const codec::Block& block, const codec::SketchCells& sketch, Adding& adding);

  /// Sets the sums that are not final to 0, in their final unit. Returns whether there are any.
  [[nodiscard]] bool begin_again(std::uint64_t total_weight);
  /// Whether begin_again() set the sums of the block that begins here to 0.
  [[nodiscard]] bool is_again(std::uint64_t flat) const {
    const MutexLock lock(mutex_);
    const auto found = blocks_.find(flat);
    return found != blocks_.end() && found->second.range.is_again();
  }

  /// out += the values read from (sum of weight * sketch) / divisor, from element `first` of the
  /// layout on. Cheapest if the calls go through the layout in order.
  void add_mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// Sets all sums to 0. Frees the memory of sums that were not used since the last reset().
  void reset(codec::SummedSketches sketches);

 private:
  struct Sums {
    codec::Block block{};
    codec::SketchShape shape{};
    SumRange range;
    HugeVector<std::int64_t> cells;  // Empty: there is no sum.
  };
  /// The values of the block that was read last.
  struct Recovered {
    const Sums* of = nullptr;
    double divisor = 0;
    codec::SketchScratch room;
    std::span<const float> values;  // The values lie in `room`.
  };
  void recover(const Sums& sums, double divisor) const FL_REQUIRES(mutex_);

  codec::SummedSketches sketches_;
  /// The sums by the block's first element in the vector.
  std::map<std::uint64_t, Sums> blocks_ FL_GUARDED_BY(mutex_);
  mutable Recovered recovered_ FL_GUARDED_BY(mutex_);
  mutable Mutex mutex_;
};

}  // namespace fl::server
