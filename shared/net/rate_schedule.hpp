// SPDX-License-Identifier: Apache-2.0
// How many bytes a second traffic may take, by the time of day: --max-upload 20mbit, --quiet
// 08:00-18:00=2mbit.
#pragma once

#include "shared/base/error.hpp"

#include <limits>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr double unlimited = std::numeric_limits<double>::infinity();

/// Parses a number of bits a second with its unit, such as 500kbit, 20mbit or 1.5gbit, into bytes a
/// second. Units are powers of 1000.
[[nodiscard]] Result<double> parse_rate(std::string_view text);

class RateSchedule {
 public:
  /// A daily window of local time, from a minute of the day to before another. It goes over
  /// midnight if `until` is not later than `from`.
  struct Window {
    int from = 0;
    int until = 0;
    double bytes_per_s = unlimited;
  };

  /// A schedule without any limit.
  RateSchedule() = default;
  explicit RateSchedule(double bytes_per_s, std::vector<Window> windows = {})
      : bytes_per_s_(bytes_per_s), windows_(std::move(windows)) {}

  /// The bytes a second that are allowed at this time: the least of the limits that hold then.
  [[nodiscard]] double at(double unix_seconds) const;
  /// Whether there is a limit at any time.
  [[nodiscard]] bool is_limited() const { return bytes_per_s_ != unlimited || !windows_.empty(); }

 private:
  double bytes_per_s_ = unlimited;
  std::vector<Window> windows_;
};

/// Parses HH:MM-HH:MM=RATE; 24:00 is the end of the day.
[[nodiscard]] Result<RateSchedule::Window> parse_window(std::string_view text);

}  // namespace fl
