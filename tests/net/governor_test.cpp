// SPDX-License-Identifier: Apache-2.0
// Rates by the time of day, and the governor that keeps them: exact, fair, and never late.
#include "shared/net/governor.hpp"

#include "shared/base/limits.hpp"
#include "shared/flags/traffic_flags.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace fl {
namespace {

using namespace std::chrono_literals;

/// The process's time zone while it exists.
class TimeZone {
 public:
  explicit TimeZone(const char* name) {
    if (const char* const value = std::getenv("TZ")) before_ = value;
    ::setenv("TZ", name, 1);
    ::tzset();
  }
  ~TimeZone() {
    before_.empty() ? ::unsetenv("TZ") : ::setenv("TZ", before_.c_str(), 1);
    ::tzset();
  }
  TimeZone(const TimeZone&) = delete;
  TimeZone& operator=(const TimeZone&) = delete;

 private:
  std::string before_;
};

/// Sends `chunks` of `bytes` each and adds up what has gone.
Awaitable<void> send(Governor& governor, std::uint64_t bytes, std::uint64_t& sent,
                     TimePoint until) {
  Turns turns;
  while (Clock::now() < until) {
    turns.add(bytes);
    for (;;) {
      const TimePoint turn = turns.advance(governor);
      if (turn == never) break;
      co_await sleep_until(turn);
    }
    sent += bytes;
  }
}

void run(SimulatedTime& time, net::io_context& io) {
  while (time.step(io)) continue;
}

TEST_CASE("rates have units of bits, and limits") {
  CHECK(parse_rate("8kbit").value() == 1000);
  CHECK(parse_rate("8000bit").value() == 1000);
  CHECK(parse_rate("20mbit").value() == 2.5e6);
  CHECK(parse_rate("1.5gbit").value() == 187.5e6);
  for (const char* text :
       {"", "20", "mbit", "20mb", "20Mbit", "-1mbit", "1e3kbit", "7kbit", "0mbit", "1001gbit",
        "nanmbit", "infmbit", "1..5mbit", "20 mbit", "20mbit "}) {
    CAPTURE(text);
    REQUIRE(!parse_rate(text));
    CHECK(parse_rate(text).error().message().find("such as 500kbit, 20mbit") != std::string::npos);
  }
}

TEST_CASE("windows are HH:MM-HH:MM=RATE") {
  const auto window = parse_window("08:05-24:00=2mbit").value();
  CHECK(window.from == 485);
  CHECK(window.until == 1440);
  CHECK(window.bytes_per_s == 250e3);
  for (const char* text :
       {"", "08:00-18:00", "8:00-18:00=2mbit", "08:00-18:00=2", "08:60-18:00=2mbit",
        "24:00-08:00=2mbit", "08:00-24:01=2mbit", "08:00=2mbit", "08:00-08:00=2mbit",
        "=2mbit-08:00", "0a:00-18:00=2mbit", "-8:00-18:00=2mbit"}) {
    CAPTURE(text);
    CHECK(!parse_window(text));
  }
}

TEST_CASE("rates and windows are written as they are read") {
  for (const char* text : {"8kbit", "500kbit", "20mbit", "1.5gbit", "1000gbit"}) {
    CAPTURE(text);
    CHECK(rate_text(parse_rate(text).value()) == text);
  }
  for (const char* text : {"08:05-24:00=2mbit", "22:00-06:30=500kbit"}) {
    CAPTURE(text);
    CHECK(window_text(parse_window(text).value()) == text);
  }
}

TEST_CASE("the limits are told, with the time of day where there are windows") {
  const TimeZone zone("UTC0");
  TrafficOptions options;
  CHECK(traffic_text(options, 0).empty());
  options.up_bytes_per_s = 2.5e6;
  CHECK(traffic_text(options, 0) == "sends at most 20mbit, receives without a limit a second");
  options.quiet.push_back(parse_window("22:00-06:30=500kbit").value());
  CHECK(traffic_text(options, 9.5 * 3600) ==
        "sends at most 20mbit, receives without a limit a second; 22:00-06:30=500kbit (here it "
        "is 09:30, UTC+00:00)");
}

TEST_CASE("windows hold by local time, over midnight, and the least limit counts") {
  const RateSchedule schedule(
      1000, {{8 * 60, 18 * 60, 100}, {17 * 60, 19 * 60, 50}, {22 * 60, 6 * 60, 200}});
  struct Row {
    double hour;
    double rate;
  };
  const Row rows[] = {{0, 200}, {5.99, 200}, {6, 1000},  {7.99, 1000},  {8, 100},  {16.99, 100},
                      {17, 50}, {18.5, 50},  {19, 1000}, {21.99, 1000}, {22, 200}, {23.99, 200}};
  const double midnight = 1'764'115'200;  // 26 November 2025, UTC.
  {
    const TimeZone utc("UTC0");
    for (const Row& row : rows) CHECK(schedule.at(midnight + row.hour * 3600) == row.rate);
  }
  {
    const TimeZone east("XYZ-5:30");  // India.
    for (const Row& row : rows) CHECK(schedule.at(midnight + (row.hour - 5.5) * 3600) == row.rate);
  }
  CHECK(RateSchedule().at(midnight) == unlimited);
  CHECK(!RateSchedule().is_limited());
  CHECK(schedule.is_limited());
}

TEST_CASE("one sender has the rate, and an idle time does not add up") {
  SimulatedTime time;
  net::io_context io;
  Governor governor(RateSchedule(1e6));
  std::uint64_t sent = 0;
  const TimePoint start = Clock::now();
  net::co_spawn(io, send(governor, 100'000, sent, start + 10s), rethrow);
  run(time, io);
  CHECK(sent == doctest::Approx(1e6 * seconds(Clock::now() - start)).epsilon(0.015));

  net::co_spawn(io, sleep_for(1h), rethrow);
  run(time, io);
  sent = 0;
  const TimePoint later = Clock::now();
  net::co_spawn(io, send(governor, 100'000, sent, later + 10s), rethrow);
  run(time, io);
  CHECK(sent == doctest::Approx(1e6 * seconds(Clock::now() - later)).epsilon(0.015));
}

TEST_CASE("senders of large and of small chunks have equal shares") {
  SimulatedTime time;
  net::io_context io;
  Governor governor(RateSchedule(1e6));
  std::vector<std::uint64_t> sent(5);
  const std::uint64_t chunks[] = {1 << 20, 512 << 10, 64 << 10, 16 << 10, 100'000};
  const TimePoint until = Clock::now() + 100s;
  for (std::size_t i = 0; i < sent.size(); ++i)
    net::co_spawn(io, send(governor, chunks[i], sent[i], until), rethrow);
  run(time, io);
  std::uint64_t all = 0;
  for (const std::uint64_t one : sent) {
    CAPTURE(one);
    CHECK(one == doctest::Approx(20e6).epsilon(0.06));  // Up to a chunk of a megabyte.
    all += one;
  }
  CHECK(all == doctest::Approx(100e6).epsilon(0.03));
}

TEST_CASE("what has passed without a turn is made up for") {
  SimulatedTime time;
  Governor governor(RateSchedule(1e6));
  governor.charge(2'000'000);
  // Two seconds, less the burst.
  CHECK(seconds(governor.reserve(1) - Clock::now()) == doctest::Approx(1.9).epsilon(0.02));
}

TEST_CASE("the rate changes with the window") {
  const TimeZone utc("UTC0");
  SimulatedTime time(1'764'115'200 + 8 * 3600 - 10);  // Ten seconds before the window.
  net::io_context io;
  Governor governor(RateSchedule(1e6, {{8 * 60, 18 * 60, 1e5}}));
  std::uint64_t before = 0;
  net::co_spawn(io, send(governor, 16 << 10, before, Clock::now() + 10s), rethrow);
  run(time, io);
  CHECK(before == doctest::Approx(10e6).epsilon(0.02));
  std::uint64_t within = 0;
  net::co_spawn(io, send(governor, 16 << 10, within, Clock::now() + 100s), rethrow);
  run(time, io);
  CHECK(within == doctest::Approx(10e6).epsilon(0.01));
}

TEST_CASE("a changed rate holds at once, for who waits too") {
  SimulatedTime time;
  net::io_context io;
  Governor governor(RateSchedule(1000));
  Turns slow;
  slow.add(3 * limits::traffic_quantum);
  const TimePoint turn = slow.advance(governor);
  REQUIRE(turn > Clock::now() + 15s);  // 16 KiB at 1 kB/s.

  governor.change(RateSchedule(1e6));
  CHECK(slow.advance(governor) < Clock::now() + 1s);
  std::uint64_t sent = 0;
  const TimePoint start = Clock::now();
  net::co_spawn(io, send(governor, 100'000, sent, start + 10s), rethrow);
  run(time, io);
  CHECK(sent == doctest::Approx(1e6 * seconds(Clock::now() - start)).epsilon(0.03));

  governor.change(RateSchedule());
  CHECK(!governor.is_limited());
  CHECK(slow.advance(governor) == never);
  governor.change(RateSchedule(1000));
  CHECK(governor.is_limited());
  slow.add(3 * limits::traffic_quantum);
  CHECK(slow.advance(governor) > Clock::now() + 15s);
}

TEST_CASE("without a limit nothing waits") {
  SimulatedTime time;
  Governor governor{RateSchedule()};
  CHECK(Turns().advance(governor) == never);
  for (int i = 0; i < 1000; ++i) CHECK(governor.reserve(1 << 30) <= Clock::now());
  Turns small;
  small.add(10 << 20);
  CHECK(small.advance(governor) == never);
  CHECK(small.take() == 10 << 20);
  CHECK(small.take() == 0);
}

}  // namespace
}  // namespace fl
