// SPDX-License-Identifier: Apache-2.0
// Runs a robust rule (aggregate_rule.hpp) over a round's updates, block by block: at no time are
// all updates in memory. Rules that need distances read the updates twice: prepare() makes the
// distances of all pairs, and read() the result. The same updates in the same order give the same
// bits, with any number of threads: so callers pass them in the order of the clients' names.
//
// Memory, for n updates: 2,048 elements of each (24 KiB an update), 24 n^2 bytes, and what the
// UpdateRows hold.
#pragma once

#include "server/sums/aggregate_rule.hpp"
#include "server/sums/combination.hpp"
#include "server/sums/distances.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/base/error.hpp"
#include "shared/params/read_values.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fl::server {

/// The updates of a round, in the order of their clients' names. All values are finite.
class UpdateRows {
 public:
  virtual ~UpdateRows() = default;
  [[nodiscard]] virtual std::size_t count() const = 0;
  /// Writes the elements [first, first + elements) of each update, one update after another. Fast
  /// if `first` is where the last call ended. Uses the lanes as it likes.
  [[nodiscard]] virtual Result<void> read(std::uint64_t first, std::size_t elements, Lanes& lanes,
                                          std::span<float> out) = 0;
};

/// One thread at a time.
class RobustMean {
 public:
  /// `parameters`: distances are those of this many elements from the front. `threads`: 0 means one
  /// per core. `rows` has at least one update and must outlive this object. `center`: the last
  /// round's result (centered-clip). Null: it is zeros.
  RobustMean(const AggregateRule& rule, UpdateRows& rows, std::uint64_t parameters, int threads,
             ReadValues center = nullptr);

  /// Call it once, before read(). Errors: those of the rows and of the center.
  [[nodiscard]] Result<void> prepare();
  /// out[i] = element first + i of the result.
  [[nodiscard]] Result<void> read(std::uint64_t first, std::span<float> out);

 private:
  Result<void> read_rows(std::uint64_t first, std::size_t elements);
  void combine(std::span<float> out);
  void mix();
  void take_middle(std::span<float> out);
  [[nodiscard]] float* row(std::size_t index, std::size_t elements) {
    return &block_[index * elements];
  }

  AggregateRule rule_;
  UpdateRows& rows_;
  std::uint64_t parameters_;
  Lanes lanes_;
  ReadValues center_;
  std::vector<double> weights_;  // For rules that are not by coordinate.
  Neighbours near_;              // For rules by coordinate, with mixing.
  std::vector<float> block_;     // A block of the updates and, if there is one, of the center.
  std::vector<float> mixed_;
  std::vector<double> scratch_;
};

}  // namespace fl::server
