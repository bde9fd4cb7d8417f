// SPDX-License-Identifier: Apache-2.0
#include "shared/flags/traffic_flags.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/environment.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/time_zone.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace fl {
namespace {

void declare_rate(CLI::App& app, const char* flag, double& rate, const std::string& help) {
  app.add_option(
         flag,
         [flag, &rate](const CLI::results_t& given) {
           const auto parsed = parse_rate(given.front());
           if (!parsed) throw CLI::ValidationError(flag, parsed.error().message());
           rate = *parsed;
           return true;
         },
         help)
      ->type_name("RATE");
}

}  // namespace

void declare_traffic_flags(CLI::App& app, TrafficOptions& options, const char* what) {
  declare_rate(
      app, "--max-upload", options.up_bytes_per_s,
      fmt::format("The most that {} sends in a second, such as 20mbit (default: no limit)", what));
  declare_rate(
      app, "--max-download", options.down_bytes_per_s,
      fmt::format("The most that {} receives in a second, such as 20mbit (default: no limit)",
                  what));
  app.add_option(
         "--quiet",
         [&options](const CLI::results_t& given) {
           options.quiet.clear();
           for (const auto& text : given) {
             const auto window = parse_window(text);
             if (!window) throw CLI::ValidationError("--quiet", window.error().message());
             options.quiet.push_back(*window);
           }
           if (const auto zone = check_time_zone(system_environment()); !zone)
             throw CLI::ValidationError("--quiet", zone.error().message());
           if (options.quiet.size() > limits::quiet_windows_max)
             throw CLI::ValidationError(
                 "--quiet", fmt::format("there are {} windows; the limit is {}",
                                        options.quiet.size(), limits::quiet_windows_max));
           return true;
         },
         "A lower limit for each direction within these hours of local time, such as "
         "08:00-18:00=2mbit; may be repeated, or list several with commas")
      ->type_name("HH:MM-HH:MM=RATE")
      ->expected(1)
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::string rate_text(double bytes_per_s) {
  const double bits = bytes_per_s * 8;
  for (const auto& [name, scale] : {std::pair{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}}) {
    if (bits >= scale) return fmt::format("{:g}{}", bits / scale, name);
  }
  return fmt::format("{:g}bit", bits);
}

std::string window_text(const RateSchedule::Window& window) {
  return fmt::format("{:02}:{:02}-{:02}:{:02}={}", window.from / 60, window.from % 60,
                     window.until / 60, window.until % 60, rate_text(window.bytes_per_s));
}

std::string traffic_text(const TrafficOptions& options, double unix_seconds) {
  const auto limit = [](double rate) {
    return rate == unlimited ? std::string("without a limit") : "at most " + rate_text(rate);
  };
  if (!RateSchedule(options.up_bytes_per_s, options.quiet).is_limited() &&
      options.down_bytes_per_s == unlimited)
    return "";
  std::string text = fmt::format("sends {}, receives {} a second", limit(options.up_bytes_per_s),
                                 limit(options.down_bytes_per_s));
  if (options.quiet.empty()) return text;
  for (const auto& window : options.quiet) text += "; " + window_text(window);
  return text + fmt::format(" (here it is {})", local_time_text(unix_seconds));
}

Governors make_governors(const TrafficOptions& options) {
  if (const std::string text = traffic_text(options, Clock::unix_seconds()); !text.empty())
    log_info("traffic: {}", text);
  Governors traffic;
  traffic.up = std::make_shared<Governor>(RateSchedule(options.up_bytes_per_s, options.quiet));
  traffic.down = std::make_shared<Governor>(RateSchedule(options.down_bytes_per_s, options.quiet));
  return traffic;
}

void change_governors(const Governors& traffic, const TrafficOptions& options) {
  const std::string text = traffic_text(options, Clock::unix_seconds());
  log_info("traffic: {}", text.empty() ? "without limits" : text);
  traffic.up->change(RateSchedule(options.up_bytes_per_s, options.quiet));
  traffic.down->change(RateSchedule(options.down_bytes_per_s, options.quiet));
}

}  // namespace fl
