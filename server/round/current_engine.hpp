// SPDX-License-Identifier: Apache-2.0
// The engine of the run at hand. A server runs one run after the other, each with an engine of its
// own, all on the same strand; sessions keep the one that they began with. Any thread.
#pragma once

#include "server/round/engine.hpp"
#include "shared/base/async/mutex.hpp"

#include <memory>

namespace fl {

class CurrentEngine {
 public:
  explicit CurrentEngine(std::shared_ptr<RoundEngine> engine) : engine_(std::move(engine)) {}

  /// Never null. Between two runs, the one that has ended: it still answers, and takes no client.
  [[nodiscard]] std::shared_ptr<RoundEngine> get() const {
    const MutexLock lock(mutex_);
    return engine_;
  }
  void set(std::shared_ptr<RoundEngine> engine) {
    const MutexLock lock(mutex_);
    engine_ = std::move(engine);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<RoundEngine> engine_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl
