// SPDX-License-Identifier: Apache-2.0
// ModelCache: the model versions that the agents of a process hold. Each version is in memory once,
// however many agents use it. fl-client has one agent and keeps one version; fl-sim has thousands
// of agents, which share a few versions. Any thread.
#pragma once

#include "shared/base/io/digest.hpp"

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace fl::client {

class ModelCache {
 public:
  using Model = std::shared_ptr<const std::vector<float>>;

  /// Keeps the newest `models_max` (1 or more). An older one lives as long as somebody uses it.
  explicit ModelCache(std::size_t models_max = 1) : models_max_(models_max) {}

  /// Returns the model with this digest, or null if the cache does not have it.
  [[nodiscard]] Model find(const Digest& digest) const;
  /// Adds a model with this digest. If the cache has it already, `values` are freed.
  void keep(const Digest& digest, std::vector<float> values);

  /// Returns a buffer of this many elements with arbitrary contents. Buffers are reused, because
  /// models are too large to allocate each time. A buffer that is neither kept nor given back is
  /// simply freed.
  [[nodiscard]] std::vector<float> borrow(std::size_t elements);
  void give_back(std::vector<float> buffer);

 private:
  struct Entry {
    Digest digest;
    std::shared_ptr<std::vector<float>> values;
  };
  /// Called with mutex_ held.
  [[nodiscard]] const Entry* look(const Digest& digest) const;

  mutable std::mutex mutex_;  // Guards the members below.
  std::size_t models_max_;
  std::deque<Entry> models_;  // Oldest first.
  std::vector<std::vector<float>> buffers_;
};

}  // namespace fl::client
