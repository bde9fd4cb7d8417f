// SPDX-License-Identifier: Apache-2.0
// A member's quotas limit what it may send without being asked: messages, bytes of their headers,
// downloads and renewals have a token bucket each. Each request of the server's adds tokens for the
// answers, so quotas never slow a fast run. Payloads of uploads are not counted, because their size
// is known before they begin.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/wire/message.hpp"

namespace fl::server {

/// A bucket holds up to `capacity` tokens and is full at first. It gains `per_s` tokens a second.
/// give() may put in up to `given_max` more. Not synchronized.
class TokenBucket {
 public:
  TokenBucket(double capacity, double per_s, double given_max)
      : capacity_(capacity), per_s_(per_s), given_max_(given_max) {}

  /// Takes `tokens` tokens. If the bucket has fewer, it takes none and returns false.
  [[nodiscard]] bool take(double tokens);
  /// Adds tokens to those that time adds.
  void give(double tokens);

 private:
  void refill();

  double capacity_;
  double per_s_;
  double given_max_;
  double tokens_ = capacity_;
  TimePoint refilled_at_ = Clock::now();
};

/// The quotas of one session. On the strand of its link.
class MemberQuota {
 public:
  /// The kind of a message's cost. Each takes one message and its bytes from the quota; a download
  /// or a renewal takes one of those, too. `granted` takes nothing at all, because the server has
  /// granted what the message belongs to.
  enum class Cost { granted, message, download, renewal };

  MemberQuota();

  /// Counts a received message. The error is `protocol` and names the quota that is used up.
  [[nodiscard]] Result<void> charge(const wire::Header& received, Cost cost);
  /// Adds tokens for the answers to a message that the server has sent.
  void allow_answers_to(const wire::Header& sent);

 private:
  TokenBucket messages_;
  TokenBucket header_bytes_;
  TokenBucket downloads_;
  TokenBucket renewals_;
};

}  // namespace fl::server
