// SPDX-License-Identifier: Apache-2.0
// The flags about limits of traffic, which fl-server and fl-client share: --max-upload,
// --max-download, --quiet.
#pragma once

#include "shared/net/governor.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace fl {

struct TrafficOptions {
  double up_bytes_per_s = unlimited;
  double down_bytes_per_s = unlimited;
  std::vector<RateSchedule::Window> quiet;  // Windows for each direction.
};

inline constexpr std::array<std::string_view, 3> traffic_flags{"--max-upload", "--max-download",
                                                               "--quiet"};

/// Declares the flags. `what` sends and receives: "this client", "this server with all clients".
/// `options` must live until `app` has parsed.
void declare_traffic_flags(CLI::App& app, TrafficOptions& options, const char* what);

/// The rate as the flags are written: "20mbit", "08:00-18:00=2mbit".
[[nodiscard]] std::string rate_text(double bytes_per_s);
[[nodiscard]] std::string window_text(const RateSchedule::Window& window);
/// The limits as text, with this machine's time, which decides about windows; "" without a limit.
[[nodiscard]] std::string traffic_text(const TrafficOptions& options, double unix_seconds);

/// Makes the governors. The log says what the limits are, if there are any.
[[nodiscard]] Governors make_governors(const TrafficOptions& options);
/// Changes the limits from now on, also for open connections.
void change_governors(const Governors& traffic, const TrafficOptions& options);

}  // namespace fl
