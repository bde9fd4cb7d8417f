// SPDX-License-Identifier: Apache-2.0
// How much a member may send of its own accord: messages, bytes of their headers, downloads and
// renewals, each as a token bucket. What the server asks of it gives it more, so a fast run is
// never slowed. Payloads of uploads are not counted: their size is known before they begin.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/wire/message.hpp"

namespace fl {

/// Holds up to `capacity` tokens, full at first, and gains `per_s` of them a second; and up to
/// `given_max` more that it was given. Not synchronized.
class TokenBucket {
 public:
  TokenBucket(double capacity, double per_s, double given_max)
      : capacity_(capacity), per_s_(per_s), given_max_(given_max) {}

  /// False, and nothing is taken: it has fewer.
  [[nodiscard]] bool take(double tokens);
  /// Adds tokens beyond what time gives.
  void give(double tokens);

 private:
  void refill();

  double capacity_;
  double per_s_;
  double given_max_;
  double tokens_ = capacity_;
  TimePoint refilled_at_ = Clock::now();
};

/// Of one session. On its link's strand.
class MemberQuota {
 public:
  MemberQuota();

  /// Counts a message that has come. The Error is `protocol` and says of what it was too much.
  [[nodiscard]] Result<void> charge(const wire::Header& received);
  /// The server has sent this: what it asks for may be answered.
  void allow_answers_to(const wire::Header& sent);

 private:
  TokenBucket messages_;
  TokenBucket header_bytes_;
  TokenBucket downloads_;
  TokenBucket renewals_;
};

}  // namespace fl
