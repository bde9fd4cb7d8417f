// SPDX-License-Identifier: Apache-2.0
#include "server/net/member_quota.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

// For one request of the server's a client may download the version, perhaps again from its start,
// announce its update, and repeat that a few times.
constexpr double messages_per_request = 8;
constexpr double header_bytes_per_request = 16 << 10;
constexpr double downloads_per_request = 3;

/// A bucket with room for the tokens of several open requests.
TokenBucket bucket(double capacity, double per_s, double per_request) {
  return {capacity, per_s, per_request * limits::quota_requests_open};
}

Error too_much(std::string_view what) {
  return {Errc::protocol, fmt::format("the client sends too many {}: wait, and send what the "
                                      "server asks for",
                                      what)};
}

}  // namespace

void TokenBucket::refill() {
  const TimePoint now = Clock::now();
  const double gained = per_s_ * seconds(now - refilled_at_);
  refilled_at_ = now;
  if (tokens_ < capacity_) tokens_ = std::min(capacity_, tokens_ + gained);
}

bool TokenBucket::take(double tokens) {
  refill();
  if (tokens_ < tokens) return false;
  tokens_ -= tokens;
  return true;
}

void TokenBucket::give(double tokens) {
  refill();
  tokens_ = std::min(capacity_ + given_max_, tokens_ + tokens);
}

MemberQuota::MemberQuota()
    : messages_(bucket(limits::quota_messages, limits::quota_messages_per_s, messages_per_request)),
      header_bytes_(bucket(limits::quota_header_bytes, limits::quota_header_bytes_per_s,
                           header_bytes_per_request)),
      downloads_(
          bucket(limits::quota_downloads, limits::quota_downloads_per_s, downloads_per_request)),
      renewals_(bucket(limits::quota_renewals, limits::quota_renewals_per_s, 0)) {}

Result<void> MemberQuota::charge(const wire::Header& received, Cost cost) {
  if (cost == Cost::granted) return {};
  if (!messages_.take(1)) return too_much("messages");
  if (!header_bytes_.take(static_cast<double>(received.ByteSizeLong())))
    return too_much("bytes in messages");
  if (cost == Cost::download && !downloads_.take(1)) return too_much("requests for a model");
  if (cost == Cost::renewal && !renewals_.take(1)) return too_much("requests for a certificate");
  return {};
}

void MemberQuota::allow_answers_to(const wire::Header& sent) {
  const bool asks_in_masked_round = sent.has_secure_cohort() || sent.has_secure_inbox() ||
                                    sent.has_secure_survivors() || sent.has_secure_ask();
  if (!sent.has_offer() && !sent.has_evaluate() && !asks_in_masked_round) return;
  messages_.give(messages_per_request);
  header_bytes_.give(header_bytes_per_request);
  downloads_.give(downloads_per_request);
}

}  // namespace fl::server
