// The versions of the model that the agents of one process hold: each is in memory once, however
// many of them hold it. An fl-client has one agent and keeps one version; fl-sim has thousands,
// which share a few. Any thread.
#pragma once

#include "shared/base/io/digest.hpp"

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace fl {

class ModelCache {
 public:
  using Model = std::shared_ptr<const std::vector<float>>;

  /// Keeps the newest `models_max`, 1 or more; an older one lives until whoever uses it is done.
  explicit ModelCache(std::size_t models_max = 1) : models_max_(models_max) {}

  /// Null: it is not here, or not any more.
  [[nodiscard]] Model find(const Digest& digest) const;
  /// `values`, whose digest this is, can be found from now on. If they can already, these are
  /// freed.
  void keep(const Digest& digest, std::vector<float> values);

  /// A buffer of this size that holds anything: models are too big to allocate anew each time. What
  /// is neither kept nor given back is freed.
  [[nodiscard]] std::vector<float> borrow(std::size_t elements);
  void give_back(std::vector<float> buffer);

 private:
  struct Entry {
    Digest digest;
    std::shared_ptr<std::vector<float>> values;
  };
  /// Called with mutex_ held.
  [[nodiscard]] const Entry* look(const Digest& digest) const;

  mutable std::mutex mutex_;  // Guards what follows.
  std::size_t models_max_;
  std::deque<Entry> models_;  // Oldest first.
  std::vector<std::vector<float>> buffers_;
};

}  // namespace fl
