// SPDX-License-Identifier: Apache-2.0
// The file of --trace: valid JSON after each write, with numbers for processes and tracks.
#include "client/learn/trace.hpp"

#include "shared/base/json.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <map>
#include <vector>

namespace fl {
namespace {

using nlohmann::json;

json read_events(const std::filesystem::path& path) {
  const auto text = posix_files().read_all(path);
  REQUIRE(text);
  const json events = parse_json(*text);
  REQUIRE(events.is_array());
  return events;
}

TraceSpan span(std::string name, std::string track) {
  return {.name = std::move(name), .track = std::move(track), .begin_us = 17, .duration_us = 5};
}

TEST_CASE("a trace is valid JSON after each write") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "trace.json";
  const auto trace = TraceFile::make(posix_files(), path);
  REQUIRE(trace);
  (*trace)->name_process(0, "hospital \"A\"");
  CHECK(read_events(path).size() == 1);
  const std::vector spans{span("forward", "steps"), span("bucket 0", "gradients")};
  (*trace)->write(1, spans);
  CHECK(read_events(path).size() == 5);  // With the names of two tracks.
  (*trace)->write(1, spans);
  (*trace)->write(2, spans);
  (*trace)->write(2, {});
  const json events = read_events(path);
  REQUIRE(events.size() == 11);
  CHECK(events[0]["name"] == "process_name");
  CHECK(events[0]["args"]["name"] == "hospital \"A\"");
  std::map<std::pair<int, int>, std::string> tracks;
  for (const json& event : events) {
    const std::pair place(event["pid"].get<int>(), event["tid"].get<int>());
    if (event["name"] == "thread_name") tracks[place] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    CHECK(event["ts"] == 17);
    CHECK(event["dur"] == 5);
    CHECK(tracks.at(place) == (event["name"] == "forward" ? "steps" : "gradients"));
  }
  CHECK(tracks.size() == 4);
}

TEST_CASE("a span says when it began by the wall clock, and how many bytes it sent") {
  const TraceSpan now = trace_span("upload", "transfers", 2.5, 1.5, 100);
  CHECK(now.duration_us == 1'500'000);
  const TraceSpan later = trace_span("upload", "transfers", 0, 0);
  CHECK(later.begin_us - now.begin_us >= 2'500'000);
  CHECK(later.begin_us > 1'700'000'000'000'000);  // After 2023.
  CHECK(now.bytes == 100);
}

TEST_CASE("a trace that can't be made names the path") {
  const auto trace = TraceFile::make(posix_files(), "/nonesuch/trace.json");
  REQUIRE_FALSE(trace);
  CHECK(trace.error().message().find("/nonesuch/trace.json") != std::string::npos);
}

}  // namespace
}  // namespace fl
