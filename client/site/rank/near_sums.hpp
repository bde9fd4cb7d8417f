// SPDX-License-Identifier: Apache-2.0
// Sums of few values among ranks of one machine, through memory that they share. Over Gloo even a
// sum of one number wakes several threads at both ends, one after the other. Only sums whose bits
// do not depend on the way go through memory: of whole numbers, and of floats of two ranks.
//
// One thread at a time makes calls, as with Ranks.
#pragma once

#include <torch/types.h>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace fl::site {

class NearSums {
 public:
  /// Makes the sums of a group; a collective of all its ranks. `agree` sums a number over them by
  /// another way. Null, on all ranks, if they are not all on one machine or can't share memory.
  using Agree = std::function<std::int64_t(std::int64_t)>;
  [[nodiscard]] static std::unique_ptr<NearSums> make(c10d::Store& store, int rank, int size,
                                                      const Agree& agree);
  /// Ranks that wait for this one fail.
  ~NearSums();
  NearSums(const NearSums&) = delete;
  NearSums& operator=(const NearSums&) = delete;

  /// Whether sum() can sum the values. It depends only on type, length and size of the group, so
  /// all ranks agree.
  [[nodiscard]] bool takes(const torch::Tensor& values) const;
  /// Sums over the ranks, in place. Requires: takes(values); values is contiguous. Throws
  /// std::runtime_error when a rank has ended, has left, sums another length, or does not come in
  /// time. While it waits it calls check() from time to time, which may throw too.
  using Check = std::function<void()>;
  void sum(torch::Tensor& values, std::chrono::milliseconds timeout, const Check& check);

 private:
  struct Place;
  class Memory;
  NearSums(std::unique_ptr<Memory> memory, int rank, int size);
  [[nodiscard]] bool watch_others();
  void await(int rank, std::uint32_t turn, std::chrono::steady_clock::time_point until,
             const Check& check);

  std::unique_ptr<Memory> memory_;
  int rank_;
  int size_;
  std::uint32_t turn_ = 0;
  std::vector<int> processes_;  // A pidfd of each rank's process; -1 for this one.
};

}  // namespace fl::site
