// SPDX-License-Identifier: Apache-2.0
// ModelCache: the model versions that the agents of a process hold. Each version is there once,
// however many agents use it. fl-client has one agent and keeps one version; fl-sim has thousands
// of agents, which share a few versions. Any thread.
#pragma once

#include "client/state/stored_values.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/digest.hpp"

#include <deque>
#include <memory>
#include <vector>

namespace fl::client {

class ModelCache {
 public:
  using Model = std::shared_ptr<const StoredValues>;

  /// Keeps the newest `models_max` (1 or more), in memory. An older one lives as long as somebody
  /// uses it.
  explicit ModelCache(std::size_t models_max = 1) : models_max_(models_max), pool_(own_pool_) {}
  /// Keeps one, in vectors of `pool`, which must outlive the cache.
  explicit ModelCache(ValuePool& pool) : models_max_(1), pool_(pool) {}

  /// Returns the model with this digest, or null if the cache does not have it.
  [[nodiscard]] Model find(const Digest& digest) const;
  /// Adds a model with this digest. If the cache has it already, `values` are freed.
  void keep(const Digest& digest, StoredValues values);

  /// Vectors for models and updates; older models' vectors are among them.
  [[nodiscard]] ValuePool& pool() { return pool_; }

 private:
  struct Entry {
    Digest digest;
    std::shared_ptr<StoredValues> values;
  };
  [[nodiscard]] const Entry* look(const Digest& digest) const FL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  const std::size_t models_max_;
  std::deque<Entry> models_ FL_GUARDED_BY(mutex_);  // Oldest first.
  ValuePool own_pool_;
  ValuePool& pool_;
};

}  // namespace fl::client
