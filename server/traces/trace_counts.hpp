// SPDX-License-Identifier: Apache-2.0
// What has become of traces, for the metrics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fl {

/// Since the process began.
struct TraceCounts {
  std::uint64_t spans_sent = 0;
  std::uint64_t spans_rejected = 0;  // By the collector, of those that were sent.
  std::uint64_t rounds_dropped = 0;  // Whose trace is missing, or not whole.
  std::size_t rounds_waiting = 0;    // Now.
};

}  // namespace fl
