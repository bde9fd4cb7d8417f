// SPDX-License-Identifier: Apache-2.0
// What an operator should look at now: a pure function of what the server knows.
#pragma once

#include "server/history/records.hpp"
#include "server/round/status.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

struct Alert {
  EventLevel level = EventLevel::notice;
  std::string what;
  std::string remedy;
};

/// Facts about the machine and the state folder, which the engine does not know.
struct HostFacts {
  double now = 0;                           // Unix seconds.
  std::optional<std::uint64_t> disk_free;   // Free bytes of the state's file system; none: unknown.
  std::optional<std::uint64_t> disk_bytes;  // The size of that file system.
  std::string history_error;                // Why the history can't be read; "": it can.
  std::size_t transfers_at_risk = 0;        // Transfers that will not end in time.
};

/// The alerts, the worst first.
[[nodiscard]] std::vector<Alert> alerts_of(const LiveStatus& live, const HostFacts& host);

}  // namespace fl::server
