// SPDX-License-Identifier: Apache-2.0
#include "shared/net/rate_schedule.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <optional>
#include <utility>

namespace fl {
namespace {

constexpr int minutes_of_day = 24 * 60;

/// Parses "08:30" into minutes.
std::optional<int> parse_minute(std::string_view text) {
  const auto digits = [](std::string_view two) -> std::optional<int> {
    int value = 0;
    const auto [end, ec] = std::from_chars(two.data(), two.data() + two.size(), value);
    const bool is_whole = ec == std::errc() && end == two.data() + two.size() && value >= 0;
    return is_whole ? std::optional(value) : std::nullopt;
  };
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  const auto hours = digits(text.substr(0, 2));
  const auto minutes = digits(text.substr(3, 2));
  if (!hours || !minutes || *minutes > 59) return std::nullopt;
  const int minute = *hours * 60 + *minutes;
  return minute <= minutes_of_day ? std::optional(minute) : std::nullopt;
}

}  // namespace

Result<double> parse_rate(std::string_view text) {
  const auto unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view unit = text.substr(unit_at);
  double bits = 0;
  for (const auto& [name, scale] :
       {std::pair{"bit", 1.0}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}}) {
    if (unit == name) bits = scale;
  }
  double number = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + unit_at, number);
  const bool is_number = unit_at > 0 && ec == std::errc() && end == text.data() + unit_at;
  bits *= number;
  if (!is_number || !(bits >= limits::traffic_bits_per_s_min) ||
      !(bits <= limits::traffic_bits_per_s_max))
    return Error(Errc::invalid_input,
                 fmt::format("'{}' is not a rate from {:.0f}kbit to {:.0f}gbit a second, such as "
                             "500kbit, 20mbit or 1.5gbit",
                             text, limits::traffic_bits_per_s_min / 1e3,
                             limits::traffic_bits_per_s_max / 1e9));
  return bits / 8;
}

Result<RateSchedule::Window> parse_window(std::string_view text) {
  const auto equals = text.find('=');
  const auto dash = text.find('-');
  const auto wrong = [text] {
    return Error(Errc::invalid_input,
                 fmt::format("'{}' is not HH:MM-HH:MM=RATE, such as 08:00-18:00=2mbit", text));
  };
  if (equals == text.npos || dash == text.npos || dash > equals) return wrong();
  const auto from = parse_minute(text.substr(0, dash));
  const auto until = parse_minute(text.substr(dash + 1, equals - dash - 1));
  if (!from || !until || *from == minutes_of_day) return wrong();
  if (*from == *until)
    return Error(Errc::invalid_input,
                 fmt::format("'{}' begins and ends at the same time; for the whole day write "
                             "00:00-24:00",
                             text));
  FL_TRY(const double rate, parse_rate(text.substr(equals + 1)));
  return RateSchedule::Window{*from, *until, rate};
}

double RateSchedule::at(double unix_seconds) const {
  double rate = bytes_per_s_;
  if (windows_.empty()) return rate;
  const auto whole = static_cast<std::time_t>(unix_seconds);
  std::tm local{};
  if (::localtime_r(&whole, &local) == nullptr) return rate;
  const int minute = local.tm_hour * 60 + local.tm_min;
  for (const Window& window : windows_) {
    const bool is_within = window.from < window.until
                               ? minute >= window.from && minute < window.until
                               : minute >= window.from || minute < window.until;
    if (is_within) rate = std::min(rate, window.bytes_per_s);
  }
  return rate;
}

}  // namespace fl
