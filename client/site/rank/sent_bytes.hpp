// SPDX-License-Identifier: Apache-2.0
// SentBytes: how many bytes a group of ranks has sent, itself and in the groups that were made of
// it. The groups may be used by several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace fl::site {

class SentBytes {
 public:
  void add(std::uint64_t bytes) {
    own_ += bytes;
    for (const Counter& counter : above_) *counter += bytes;
  }
  /// From now on these bytes count in a group `above`, and in those that it counts in itself.
  void count_in(const SentBytes& above) {
    above_ = above.above_;
    above_.push_back(above.beneath_);
  }
  /// Without those of the groups beneath.
  [[nodiscard]] std::uint64_t own() const { return own_; }
  [[nodiscard]] std::uint64_t all() const { return own_ + *beneath_; }

 private:
  using Counter = std::shared_ptr<std::atomic<std::uint64_t>>;
  std::atomic<std::uint64_t> own_ = 0;
  Counter beneath_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::vector<Counter> above_;
};

}  // namespace fl::site
