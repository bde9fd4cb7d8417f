// Sums of count sketches that are not decoded: a sketch is linear, so the sum of the updates'
// sketches is that of their sum, which is read from it once, in the mean (Rothchild 2020,
// "FetchSGD: communication-efficient federated learning with sketching"). So an update costs what
// its cells do. As all that a round adds up, in fixed point: no order shows.
//
// Only sketches of the sizes that the round's codec makes are added up, one to a block: so what
// updates of other codecs have takes no memory, and who comes first decides nothing.
#pragma once

#include "kernels/generic/huge_pages.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/blocks/sketch_block.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/sums/fixed_point.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace fl {

/// Memory: of each block of which there is something, 8 bytes for each cell: about 4 for each of
/// its elements at most. Refers to the layout, which must outlive it. add() may run on several
/// threads at once; so may add_mean(), while no add() runs; everything else alone.
class SketchSums {
 public:
  SketchSums(const Layout& layout, const FixedPoint& fixed, SummedSketches sketches)
      : layout_(layout), fixed_(fixed), sketches_(std::move(sketches)) {}

  /// Of the sketches of this block that can be added up, in a payload whose blocks have up to
  /// `block_elements` elements.
  [[nodiscard]] std::optional<SketchShape> shape_of(const Block& block,
                                                    std::uint32_t block_elements) const;

  /// Adds `weight` times the sketch, which has this shape. Returns an estimate of the sum of
  /// squares of what is sketched: what a row's cells have. An error, too_large for a value out of
  /// range (naming the block), has added nothing.
  [[nodiscard]] Result<Scan> add(const Block& block, const SketchCells& sketch,
                                 std::int64_t weight);

  /// out += what is recovered of (sum of weight * sketch) / divisor, from element `first` of the
  /// layout on. Cheapest from the front.
  void add_mean(std::uint64_t first, double divisor, std::span<float> out) const;

  /// All sums are 0 again; memory that was not used since the last time is given back.
  void reset(const FixedPoint& fixed, SummedSketches sketches);

 private:
  struct Sums {
    Block block{};
    SketchShape shape{};
    HugeVector<std::int64_t> cells;  // Empty: there is nothing.
  };
  /// Of the block that was wanted last.
  struct Recovered {
    const Sums* of = nullptr;
    double divisor = 0;
    SketchScratch room;
    std::span<const float> values;  // In the room.
  };
  void recover(const Sums& sums, double divisor) const;

  const Layout& layout_;
  FixedPoint fixed_;
  SummedSketches sketches_;
  std::map<std::uint64_t, Sums> blocks_;  // By where they begin in the vector.
  mutable Recovered recovered_;
  mutable std::mutex mutex_;
};

}  // namespace fl
