// SPDX-License-Identifier: Apache-2.0
// The places of members: how many sessions there may be in all, and of one member. A member whose
// session ended by its own fault waits before the next one, longer each time. Any thread.
#pragma once

#include "server/net/member_quota.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/wire/link.hpp"

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>

namespace fl::server {

class MemberPlaces : public std::enable_shared_from_this<MemberPlaces> {
 public:
  /// One session's place, from its admission on. The destructor gives it back.
  class Place {
   public:
    Place(std::shared_ptr<MemberPlaces> owner, std::string name)
        : owner_(std::move(owner)), name_(std::move(name)) {}
    ~Place() { owner_->give_back(*this); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    /// The session has its link now, and may be ended for a newer session of its member.
    void use(const std::shared_ptr<Link>& link) { owner_->use(*this, link); }
    /// Notes that the session ended by its member's fault.
    void blame() { owner_->blame(name_); }

   private:
    friend class MemberPlaces;
    std::shared_ptr<MemberPlaces> owner_;
    std::string name_;
    std::weak_ptr<Link> link_;  // Guarded by the owner.
  };

  explicit MemberPlaces(std::size_t sessions_max) : sessions_max_(sessions_max) {}

  /// Errors: unavailable, if the server has too many sessions; if the member connects too often
  /// (limits::quota_sessions) or too early after a fault (limits::fault_pause_min); or if the
  /// member has too many sessions. Then its oldest one ends, so that a program that comes back
  /// finds a place, whoever holds the others.
  [[nodiscard]] Result<std::shared_ptr<Place>> take(const std::string& name);
  [[nodiscard]] std::size_t count() const;

 private:
  void give_back(const Place& place);
  void use(Place& place, const std::shared_ptr<Link>& link);
  void blame(const std::string& name);

  struct Faults {
    int count = 0;  // Faults with less than limits::fault_memory between one and the next.
    TimePoint last{};
    TimePoint pause_until{};
  };
  const std::size_t sessions_max_;
  mutable Mutex mutex_;
  std::size_t count_ FL_GUARDED_BY(mutex_) = 0;
  /// Each member's places, the oldest first.
  std::map<std::string, std::deque<Place*>> of_member_ FL_GUARDED_BY(mutex_);
  /// How often each member may connect.
  std::map<std::string, TokenBucket> rates_ FL_GUARDED_BY(mutex_);
  std::map<std::string, Faults> faults_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::server
