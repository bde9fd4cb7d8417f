// SPDX-License-Identifier: Apache-2.0
// Which rank has which elements of a model whose units are divided over a group: the table that
// loading, sums, steps, writing and moments go by. Pure arithmetic; any thread.
#pragma once

#include "client/learn/precision.hpp"
#include "client/learn/torch/held_parameters.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::site {

/// A stretch of the model's vector of parameters that comes and goes as a whole.
struct Extent {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  /// Each so-manieth rank has the same values there, as those between have other experts. They
  /// share it: rank r is number r / apart of them.
  std::int64_t apart = 1;
};

/// How a unit is divided: number r of its ranks has `part` elements from r * part on, of which
/// those beyond `count` are filling.
struct UnitCut {
  Extent unit;
  std::int64_t part = 0;
  std::int64_t at = 0;  // Where a rank's part begins in the vector of all that it has.
};

/// Divides each unit over the ranks that share it, as evenly as can be. `ranks`: of all.
[[nodiscard]] std::vector<UnitCut> cut_units(std::span<const Extent> units, std::int64_t ranks);
/// The elements of a rank's vector, with the filling.
[[nodiscard]] std::int64_t elements_of(std::span<const UnitCut> cuts);
/// The stretches of the model that one of all ranks has, without the filling.
[[nodiscard]] std::vector<Piece> pieces_of(std::span<const UnitCut> cuts, std::int64_t rank);

/// A stretch of a unit's vector that travels in one format.
struct Segment {
  std::int64_t begin = 0;  // In the unit.
  std::int64_t count = 0;
  NumberFormat format = NumberFormat::fp32;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// A tensor of a unit: its elements, and the format in which they are read.
struct ReadTensor {
  std::int64_t elements = 0;
  NumberFormat format = NumberFormat::fp32;
};

/// The part of a number, without the filling, as it travels: in fp32 what is read so, and behind it
/// the rest in its formats, so that each value lies at a multiple of its size.
[[nodiscard]] std::vector<Segment> segments_of(const UnitCut& cut,
                                               std::span<const ReadTensor> tensors,
                                               std::int64_t number);
[[nodiscard]] std::int64_t bytes_of(std::span<const Segment> segments);

}  // namespace fl::site
