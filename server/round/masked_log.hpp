// SPDX-License-Identifier: Apache-2.0
// What the log of an open masked round says: the attempt that it is in after a restart. Pure.
#pragma once

#include "server/history/masked_messages.hpp"
#include "server/secure/attempt.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace fl::server {

struct ReplayedAttempt {
  Attempt attempt;
  /// A message does not fit: the member list or the settings have changed since it was taken. So
  /// the attempt has failed.
  bool is_outdated = false;
};

/// `said`: in the order in which it was written. `make`: begins the attempt of a number. Errors:
/// corrupt, for a row that can't be read; conflict, if the members sign whose updates count, by
/// another member list or other settings.
[[nodiscard]] Result<ReplayedAttempt> replay_masked_log(
    const std::vector<MaskedMessage>& said, const std::function<Attempt(std::uint32_t)>& make);

}  // namespace fl::server
