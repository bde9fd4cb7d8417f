// SPDX-License-Identifier: Apache-2.0
// What has become of traces, for the metrics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fl::server {

/// Counts since the process began.
struct TraceCounts {
  std::uint64_t spans_sent = 0;
  std::uint64_t spans_rejected = 0;  // Sent spans that the collector has rejected.
  std::uint64_t rounds_dropped = 0;  // Rounds whose trace is missing, or not complete.
  std::size_t rounds_waiting = 0;    // Rounds that wait now.
};

}  // namespace fl::server
