// SPDX-License-Identifier: Apache-2.0
#include "client/site/abort_switch.hpp"

#include "shared/base/async/stop_signals.hpp"

#include <utility>

namespace fl::site {

AbortSwitch::AbortSwitch() {
  const WithoutStopSignals guard;
  thread_ = std::jthread([this](const std::stop_token& stop) { call_ends(stop); });
}

AbortSwitch::~AbortSwitch() = default;

AbortSwitch::Hold::Hold(AbortSwitch& on, End end) : on_(on) {
  const MutexLock lock(on_.ends_mutex_);
  place_ = on_.ends_.insert(on_.ends_.end(), std::move(end));
  if (on_.is_on_) (*place_)();
}

AbortSwitch::Hold::~Hold() {
  const MutexLock lock(on_.ends_mutex_);
  on_.ends_.erase(place_);
}

void AbortSwitch::begin(std::uint64_t request) {
  {
    const MutexLock lock(mutex_);
    request_ = request;
    is_on_ = request_ == aborted_;
  }
  changed_.notify_all();
}

void AbortSwitch::abort(std::uint64_t request, const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    if (request < request_ || request <= aborted_) return;
    aborted_ = request;
    reason_ = reason;
    is_on_ = request_ == aborted_;
  }
  changed_.notify_all();
}

/// The switch's thread. A request that begins meanwhile can't have a group before this is over,
/// because Hold waits for it.
void AbortSwitch::call_ends(const std::stop_token& stop) {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      while (!stop.stop_requested() && (!is_on_ || ended_ == aborted_)) changed_.wait(mutex_, stop);
      if (stop.stop_requested()) return;
    }
    const MutexLock ends_lock(ends_mutex_);
    {
      const MutexLock lock(mutex_);
      if (!is_on_) continue;  // The next request has begun, and its groups may be here.
      ended_ = aborted_;
    }
    for (const End& end : ends_) end();
  }
}

std::optional<std::string> AbortSwitch::reason() const {
  const MutexLock lock(mutex_);
  return is_on_ ? std::optional(reason_) : std::nullopt;
}

}  // namespace fl::site
