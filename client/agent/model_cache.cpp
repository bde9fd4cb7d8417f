// SPDX-License-Identifier: Apache-2.0
#include "client/agent/model_cache.hpp"

#include <algorithm>
#include <utility>

namespace fl::client {

const ModelCache::Entry* ModelCache::look(const Digest& digest) const {
  const auto found = std::ranges::find(models_, digest, &Entry::digest);
  return found == models_.end() ? nullptr : &*found;
}

ModelCache::Model ModelCache::find(const Digest& digest) const {
  const MutexLock lock(mutex_);
  const Entry* const entry = look(digest);
  return entry == nullptr ? nullptr : entry->values;
}

void ModelCache::keep(const Digest& digest, StoredValues values) {
  const MutexLock lock(mutex_);
  if (look(digest) != nullptr) return;
  models_.push_back({digest, std::make_shared<StoredValues>(std::move(values))});
  if (models_.size() <= models_max_) return;
  // If only the cache uses it, no other thread can start to: that would need find().
  if (auto& oldest = models_.front().values; oldest.use_count() == 1)
    pool_.give_back(std::move(*oldest));
  models_.pop_front();
}

}  // namespace fl::client
