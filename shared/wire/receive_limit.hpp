// SPDX-License-Identifier: Apache-2.0
// ReceiveLimit: the limit on what one link receives. The peer keeps to it: from the time when there
// is a limit it may send only as much bulk as it has credit for (PeerCredit). Without a limit it
// needs no credit. The link's strand.
#pragma once

#include "shared/net/governor.hpp"
#include "shared/net/peer_credit.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace fl {

class ReceiveLimit {
 public:
  /// `limit`: null if there is none, for ever, or if the peer knows no credit. Such a peer can't be
  /// slowed down without delaying its control messages.
  explicit ReceiveLimit(std::shared_ptr<Governor> limit) : limit_(std::move(limit)) {}

  /// Whether the peer needs credit from now on and did not before: at the start of a link, or later
  /// after SIGHUP. True once; the caller says so to the peer, with a credit of 0 bytes.
  [[nodiscard]] bool begins() {
    if (is_needed_ || !limit_ || !limit_->is_limited()) return false;
    return is_needed_ = true;
  }
  [[nodiscard]] bool is_needed() const { return is_needed_; }

  /// PeerCredit::expect().
  void expect(std::uint64_t payload_bytes) { credit_.expect(payload_bytes); }
  /// Counts a message that has come: all its bytes, and those of its payload.
  void receive(std::uint64_t bytes, std::uint64_t payload_bytes) {
    if (!limit_) return;
    if (payload_bytes == 0) return limit_->charge(bytes);
    if (is_needed_) return credit_.receive(bytes, payload_bytes);
    credit_.pass(payload_bytes);
  }

  struct Grant {
    std::uint64_t bytes;  // The credit that the peer gets now.
    TimePoint next;       // When to ask again; `never`: after the next expect() or receive().
  };
  /// Call while is_needed().
  [[nodiscard]] Grant grant() {
    FL_ASSERT(is_needed_);
    const TimePoint next = credit_.advance(*limit_);
    return {credit_.take(), next};
  }
  /// The link has ended: what came without a reservation is made up for.
  void end() {
    if (limit_) limit_->charge(credit_.unpaid());
  }

 private:
  std::shared_ptr<Governor> limit_;
  PeerCredit credit_;
  bool is_needed_ = false;
};

}  // namespace fl
