// SPDX-License-Identifier: Apache-2.0
// Which way each update of a round points, beside what the round made of all of them, and how long
// it is beside the others: for whoever suspects that a member pulls another way. Over the
// parameters alone: statistics are averaged and never trained. A replay reads all of them; a round
// that closes only a sample (mean_sample.hpp), as it must not take longer for this. Sums are in
// double and in a fixed order, so the same updates give the same numbers on all machines. Blocking;
// any thread.
#pragma once

#include "server/history/records.hpp"
#include "server/sums/accumulator.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/read_values.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl::server {

/// Sums over elements of an update and of the round's mean.
struct DirectionSums {
  double product = 0;
  double update_squares = 0;
  double mean_squares = 0;

  /// None, if the update or the mean is 0.
  [[nodiscard]] std::optional<double> cosine() const;
};

/// Elements `begin` to `end` - 1 of the flat vector.
struct ElementRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Reads the update's blocks that have elements of `ranges`, and these elements of the mean.
/// `ranges`: in ascending order, without overlap. Memory: a block of each. Errors: those of the
/// reader, of `adjust` and of `mean`.
[[nodiscard]] Result<DirectionSums> direction_sums(codec::PayloadReader& update,
                                                   const AdjustUpdate& adjust,
                                                   const ReadValues& mean,
                                                   std::span<const ElementRange> ranges);

struct UpdateDirection {
  TaskId task = TaskId::none;
  std::string client;
  double norm = 0;
  /// The norm divided by the median of the round's norms (with an even number, by the larger middle
  /// one). None, if the median is 0.
  std::optional<double> relative_norm;
  /// The cosine of the update and the mean: 1 is the same direction, below 0 the opposite one.
  /// None, if one of them is 0.
  std::optional<double> cosine;
};

/// Adds an update. finish() then sets the norms' ratios.
class UpdateDirections {
 public:
  void add(const TaskRecord& task, const DirectionSums& sums);
  /// The directions, in the order in which the updates were added.
  [[nodiscard]] std::vector<UpdateDirection> finish();

 private:
  std::vector<UpdateDirection> updates_;
};

}  // namespace fl::server
