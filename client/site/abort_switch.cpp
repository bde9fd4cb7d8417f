// SPDX-License-Identifier: Apache-2.0
#include "client/site/abort_switch.hpp"

#include <utility>

namespace fl::site {

AbortSwitch::Hold::Hold(AbortSwitch& on, End end) : on_(on) {
  const MutexLock lock(on_.mutex_);
  place_ = on_.ends_.insert(on_.ends_.end(), std::move(end));
  if (on_.is_on_) (*place_)(on_.reason_);
}

AbortSwitch::Hold::~Hold() {
  const MutexLock lock(on_.mutex_);
  on_.ends_.erase(place_);
}

void AbortSwitch::begin(std::uint64_t request) {
  const MutexLock lock(mutex_);
  request_ = request;
  is_on_ = false;
  if (request_ == aborted_) turn_on();
}

void AbortSwitch::abort(std::uint64_t request, const std::string& reason) {
  const MutexLock lock(mutex_);
  if (request < request_ || request <= aborted_) return;
  aborted_ = request;
  reason_ = reason;
  if (request_ == aborted_) turn_on();
}

/// The switch is on before the first call ends: whoever is woken by that end finds the reason.
void AbortSwitch::turn_on() {
  is_on_ = true;
  for (const End& end : ends_) end(reason_);
}

std::optional<std::string> AbortSwitch::reason() const {
  if (!is_on_) return std::nullopt;
  const MutexLock lock(mutex_);
  return reason_;
}

}  // namespace fl::site
