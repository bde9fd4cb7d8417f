// SPDX-License-Identifier: Apache-2.0
// The engine of the run at hand. A server runs one run after the other, each with an engine of its
// own, all on the same strand; sessions keep the one that they began with. Any thread.
#pragma once

#include "server/round/engine.hpp"

#include <memory>
#include <mutex>

namespace fl {

class CurrentEngine {
 public:
  explicit CurrentEngine(std::shared_ptr<RoundEngine> engine) : engine_(std::move(engine)) {}

  /// Never null. Between two runs, the one that has ended: it still answers, and takes no client.
  [[nodiscard]] std::shared_ptr<RoundEngine> get() const {
    const std::lock_guard lock(mutex_);
    return engine_;
  }
  void set(std::shared_ptr<RoundEngine> engine) {
    const std::lock_guard lock(mutex_);
    engine_ = std::move(engine);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<RoundEngine> engine_;
};

}  // namespace fl
