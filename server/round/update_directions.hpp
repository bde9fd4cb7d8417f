// SPDX-License-Identifier: Apache-2.0
// Which way each update of a round points, beside what the round made of all of them, and how long
// it is beside the others: for whoever suspects that a member pulls another way. Over the
// parameters alone: statistics are averaged and never trained. Sums are in double and in the order
// of the elements, so the same updates give the same numbers on all machines. Blocking; any thread.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/codec/sums/accumulator.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl {

/// The sums over all parameters of an update and of the round's mean.
struct DirectionSums {
  double product = 0;
  double update_squares = 0;
  double mean_squares = 0;
};

/// Reads the update block by block, and as much of the mean, a file of fp32 values. `parameters`:
/// how many elements from the front count. Memory: a block of each. Errors: those of the reader, of
/// `adjust` and of the file.
[[nodiscard]] Result<DirectionSums> direction_sums(PayloadReader& update,
                                                   const AdjustUpdate& adjust, File& mean,
                                                   std::uint64_t parameters);

struct UpdateDirection {
  TaskId task = TaskId::none;
  std::string client;
  double norm = 0;
  /// The norm by the median of the round's norms, of an even number the larger middle one. None,
  /// if that is 0.
  std::optional<double> relative_norm;
  /// Between the update and the mean: 1 is the same way, below 0 the other way. None, if one of
  /// them is 0.
  std::optional<double> cosine;
};

/// Adds an update. finish() then sets the norms' ratios.
class UpdateDirections {
 public:
  void add(const TaskRecord& task, const DirectionSums& sums);
  /// In the order they were added.
  [[nodiscard]] std::vector<UpdateDirection> finish();

 private:
  std::vector<UpdateDirection> updates_;
};

}  // namespace fl
