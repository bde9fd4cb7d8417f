// SPDX-License-Identifier: Apache-2.0
#include "server/round/masked_log.hpp"

namespace fl::server {

Result<ReplayedAttempt> replay_masked_log(const std::vector<MaskedMessage>& said,
                                          const std::function<Attempt(std::uint32_t)>& make) {
  ReplayedAttempt now{.attempt = make(1), .is_outdated = false};
  for (const MaskedMessage& row : said) {
    // It came while the next attempt was beginning.
    if (row.attempt < now.attempt.number()) continue;
    if (row.attempt > now.attempt.number()) now = {.attempt = make(row.attempt)};
    wire::Header message;
    if (!message.ParseFromString(row.message))
      return Error(Errc::corrupt, "the history's table masked_message can't be read");
    if (message.has_failed()) {
      now = {.attempt = make(row.attempt + 1)};
      continue;
    }
    now.is_outdated = now.is_outdated || !now.attempt.apply(row.client, message);
    if (now.is_outdated && message.has_secure_survivors()) {
      return Error(Errc::conflict,
                   "the members of the open round sign whose updates count, by another --members "
                   "or other settings: start with those until the round is recorded");
    }
  }
  return now;
}

}  // namespace fl::server
