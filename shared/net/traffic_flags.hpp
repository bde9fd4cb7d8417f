// SPDX-License-Identifier: Apache-2.0
// The flags about limits of traffic, which fl-server and fl-client share: --max-upload,
// --max-download, --quiet.
#pragma once

#include "shared/net/governor.hpp"

#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

struct TrafficOptions {
  double up_bytes_per_s = unlimited;
  double down_bytes_per_s = unlimited;
  std::vector<RateSchedule::Window> quiet;  // For each direction.
};

/// Declares the flags. `what` sends and receives: "this client", "this server with all clients".
/// `options` must live until `app` has parsed.
void declare_traffic_flags(CLI::App& app, TrafficOptions& options, const char* what);

/// Null governors where there is no limit.
[[nodiscard]] Governors make_governors(const TrafficOptions& options);

}  // namespace fl
