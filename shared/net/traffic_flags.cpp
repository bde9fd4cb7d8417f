// SPDX-License-Identifier: Apache-2.0
#include "shared/net/traffic_flags.hpp"

#include "shared/base/flags.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <string>

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

std::shared_ptr<Governor> make_governor(double rate, const TrafficOptions& options) {
  RateSchedule schedule(rate, options.quiet);
  return schedule.is_limited() ? std::make_shared<Governor>(std::move(schedule)) : nullptr;
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

Governors make_governors(const TrafficOptions& options) {
  Governors traffic;
  traffic.up = make_governor(options.up_bytes_per_s, options);
  traffic.down = make_governor(options.down_bytes_per_s, options);
  return traffic;
}

}  // namespace fl
