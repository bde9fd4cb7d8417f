// SPDX-License-Identifier: Apache-2.0
// What an orchestrator is told of a server that starts, runs, hangs, and has no disk.
#include "server/admin/probes.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/temporary_folder.hpp"

#include <boost/asio/co_spawn.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

/// The status of both probes, and what the second one says.
std::string asked(const Probes& probes) {
  const auto live = probes.answer("/livez");
  const auto ready = probes.answer("/readyz");
  REQUIRE(live);
  REQUIRE(ready);
  return std::to_string(live->status) + " " + std::to_string(ready->status) + " " + ready->body;
}

Awaitable<std::string> fine() { co_return "fine"; }

void pass(SimulatedTime& time, net::io_context& io, Duration duration) {
  net::co_spawn(io, sleep_for(duration), rethrow);
  const Duration until = time.elapsed() + duration;
  while (time.elapsed() < until) REQUIRE(time.step(io));
}

}  // namespace

TEST_CASE("a server is alive while its pulse beats, and ready while nothing is in the way") {
  SimulatedTime time;
  net::io_context io;
  Pulse pulse(io.get_executor(), ServiceManager());
  Probes probes(pulse);
  CHECK(!probes.answer("/healthz"));
  CHECK(!probes.answer("/livez/"));
  CHECK(asked(probes) == "200 503 {\"error\":\"the server is starting\"}\n");
  probes.set_trouble("");
  CHECK(asked(probes) == "200 200 {\"status\":\"ok\"}\n");

  net::co_spawn(io, pulse.run(fine), rethrow);
  pass(time, io, 3 * limits::pulse_silence_max);
  CHECK(asked(probes).starts_with("200 200 "));
  pulse.stop();
  pass(time, io, limits::pulse_silence_max - limits::pulse_every);
  CHECK(asked(probes).starts_with("200 200 "));
  pass(time, io, 2 * limits::pulse_every);
  CHECK(asked(probes).starts_with("503 503 "));
  CHECK(asked(probes).find("has not answered for 6") != std::string::npos);
}

TEST_CASE("trouble with the history is its missing files, and a disk that is full") {
  const TemporaryFolder folder;
  const std::filesystem::path state = folder / "state";
  CHECK(trouble_with_history(state).find("No such file") != std::string::npos);
  std::filesystem::create_directory(state);
  CHECK(trouble_with_history(state).find("No such file") != std::string::npos);
  std::ofstream(state / "history.sqlite") << "x";
  CHECK(trouble_with_history(state).empty());
}

}  // namespace fl::test
