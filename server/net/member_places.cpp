// SPDX-License-Identifier: Apache-2.0
#include "server/net/member_places.hpp"

#include "shared/base/limits.hpp"

#include <boost/asio/post.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

Result<std::shared_ptr<MemberPlaces::Place>> MemberPlaces::take(const std::string& name) {
  auto place = std::make_shared<Place>(shared_from_this(), name);
  const MutexLock lock(mutex_);
  const Faults& faults = faults_[name];
  auto& places = of_member_[name];
  auto& rate = rates_.try_emplace(name, limits::quota_sessions, limits::quota_sessions_per_s, 0.0)
                   .first->second;
  places.push_back(place.get());  // The destructor gives it back, also after a refusal.
  ++count_;
  if (const Duration pause = faults.pause_until - Clock::now(); pause > Duration::zero()) {
    return Error(Errc::unavailable,
                 fmt::format("'{}' broke the protocol {} times, the last time {:.0f} s ago: it may "
                             "connect again in {:.0f} s",
                             name, faults.count, seconds(Clock::now() - faults.last),
                             std::ceil(seconds(pause))));
  }
  if (places.size() > limits::sessions_of_member_max) {
    if (const auto oldest = places.front()->link_.lock())
      net::post(oldest->executor(), [oldest] { oldest->close(); });
    return Error(Errc::unavailable,
                 fmt::format("'{}' has {} sessions, which is the limit: the oldest ends now", name,
                             limits::sessions_of_member_max));
  }
  if (count_ > sessions_max_) {
    return Error(Errc::unavailable,
                 fmt::format("the server has {} sessions, which is its limit", sessions_max_));
  }
  if (!rate.take(1)) {
    return Error(Errc::unavailable,
                 fmt::format("'{}' connects too often: {} times at once, then once in {:.0f} s are "
                             "the limit",
                             name, limits::quota_sessions, 1 / limits::quota_sessions_per_s));
  }
  return place;
}

std::size_t MemberPlaces::count() const {
  const MutexLock lock(mutex_);
  return count_;
}

void MemberPlaces::give_back(const Place& place) {
  const MutexLock lock(mutex_);
  const auto found = of_member_.find(place.name_);
  std::erase(found->second, &place);
  if (found->second.empty()) of_member_.erase(found);
  --count_;
}

void MemberPlaces::blame(const std::string& name) {
  const MutexLock lock(mutex_);
  Faults& faults = faults_[name];
  const TimePoint now = Clock::now();
  if (now - faults.last > limits::fault_memory) faults.count = 0;
  Duration pause = limits::fault_pause_min;
  for (int i = 0; i < faults.count && pause < limits::fault_pause_max; ++i) pause *= 2;
  ++faults.count;
  faults.last = now;
  faults.pause_until = now + std::min<Duration>(pause, limits::fault_pause_max);
}

void MemberPlaces::use(Place& place, const std::shared_ptr<Link>& link) {
  const MutexLock lock(mutex_);
  place.link_ = link;
}

}  // namespace fl::server
