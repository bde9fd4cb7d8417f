// SPDX-License-Identifier: Apache-2.0
// The status line of a server on a terminal: its text, and that it never wraps.
#include "server/admin/status_line.hpp"

#include "server/admin/http_server.hpp"
#include "server/admin/metrics.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

EngineStatus collecting() {
  EngineStatus status;
  status.phase = "collecting";
  status.round = 12;
  status.rounds_total = 500;
  status.clients = 10;
  status.asked = 10;
  status.accepted = 7;
  status.bytes_up = 12'340'000;
  status.bytes_down = 45'600'000;
  return status;
}

TEST_CASE("the status line has only the parts that are known") {
  EngineStatus status = collecting();
  CHECK(format_status(status) ==
        "round 12/500 · collecting 7 of 10 · 10 clients · up 12.3 MB, down 45.6 MB");
  status.clients = 1;
  status.asked = 0;
  CHECK(format_status(status) == "round 12/500 · collecting · 1 client · up 12.3 MB, down 45.6 MB");
  status.metric = "accuracy";
  status.metrics = {{"top5", 0.99}, {"accuracy", 0.861}, {"loss", 0.25}};
  CHECK(format_status(status).ends_with("· accuracy 86.10%"));
  status.metrics[1] = {"perplexity", 21.344, false};
  CHECK(!format_status(status).ends_with("%"));
  status.metric = "perplexity";
  CHECK(format_status(status).ends_with("· perplexity ~21.34"));
}

TEST_CASE("the admin pages have every metric by its name") {
  EngineStatus status = collecting();
  CHECK(format_metrics(status, {}, {}).find("metric{") == std::string::npos);
  CHECK(format_health(status).find("\"metrics\":{}") != std::string::npos);
  status.metric = "f1";
  status.metrics = {{"f1", 0.5}, {"accuracy", 0.875}, {"loss", 0.25}};
  const std::string text = format_metrics(status, {}, {});
  CHECK(text.find("\ntributary_accuracy 0.875\n") != std::string::npos);
  CHECK(text.find("# TYPE tributary_metric gauge\ntributary_metric{name=\"f1\"} 0.5\n") !=
        std::string::npos);
  CHECK(text.find("\ntributary_metric{name=\"loss\"} 0.25\n") != std::string::npos);
  const std::string health = format_health(status);
  CHECK(health.find("\"metric\":\"f1\"") != std::string::npos);
  CHECK(health.find("\"metrics\":{\"accuracy\":0.875,\"f1\":0.5,\"loss\":0.25}") !=
        std::string::npos);
}

TEST_CASE("queues, transfers and traces have their figures") {
  EngineStatus status = collecting();
  status.queues = {.store = 7,
                   .events = 2,
                   .verdicts = 3,
                   .checks = 4,
                   .uploads = 5,
                   .downloads = 6,
                   .buffer_bytes = 196'608};
  const TraceCounts traces{
      .spans_sent = 1000, .spans_rejected = 8, .rounds_dropped = 9, .rounds_waiting = 10};
  const std::string text = format_metrics(status, {}, {}, traces);
  const auto has = [&text](const char* line) { return text.find(line) != std::string::npos; };
  CHECK(has("# TYPE tributary_queue_length gauge\n"));
  CHECK(has("tributary_queue_length{queue=\"store\"} 7\n"));
  CHECK(has("tributary_queue_length{queue=\"events\"} 2\n"));
  CHECK(has("tributary_queue_length{queue=\"verdicts\"} 3\n"));
  CHECK(has("tributary_queue_length{queue=\"checks\"} 4\n"));
  CHECK(has("tributary_queue_length{queue=\"traces\"} 10\n"));
  CHECK(has("tributary_transfers{direction=\"up\"} 5\n"));
  CHECK(has("tributary_transfers{direction=\"down\"} 6\n"));
  CHECK(has("tributary_transfer_buffer_bytes 196608\n"));
  CHECK(has("tributary_trace_spans_sent_total 1000\n"));
  CHECK(has("tributary_trace_spans_rejected_total 8\n"));
  CHECK(has("tributary_trace_rounds_dropped_total 9\n"));
}

TEST_CASE("a histogram's buckets add up, and labels are escaped") {
  HistoryTally tally;
  for (const double seconds : {0.5, 2.0, 2.0, 5000.0}) tally.round_s.add(seconds);
  tally.codecs["a\"b\\c\nd"].bytes = 7;
  tally.clients["x"].updates["late"] = 2;
  const std::string text = format_metrics(collecting(), tally, {});
  const auto has = [&text](const char* line) { return text.find(line) != std::string::npos; };
  CHECK(has("# TYPE tributary_round_duration_seconds histogram\n"));
  CHECK(has("tributary_round_duration_seconds_bucket{le=\"0.3\"} 0\n"));
  CHECK(has("tributary_round_duration_seconds_bucket{le=\"1\"} 1\n"));
  CHECK(has("tributary_round_duration_seconds_bucket{le=\"3\"} 3\n"));
  CHECK(has("tributary_round_duration_seconds_bucket{le=\"3600\"} 3\n"));
  CHECK(has("tributary_round_duration_seconds_bucket{le=\"+Inf\"} 4\n"));
  CHECK(has("tributary_round_duration_seconds_sum 5004.5\n"));
  CHECK(has("tributary_update_bytes_total{codec=\"a\\\"b\\\\c\\nd\"} 7\n"));
  CHECK(has("tributary_client_updates_total{client=\"x\",outcome=\"late\"} 2\n"));
  CHECK(has("tributary_updates_total{outcome=\"refused\"} 0\n"));
}

TEST_CASE("the time left is the time of the remaining rounds") {
  EngineStatus status = collecting();
  status.round_seconds = 2;
  const auto left = [&](Round round, std::uint32_t offered) {
    status.round = round;
    status.asked = offered;
    const std::string line = format_status(status);
    return line.substr(line.rfind("· ") + std::string_view("· ").size());
  };
  CHECK(left(500, 10) == "2 s left");  // The open round counts.
  CHECK(left(500, 0) == "0 s left");
  CHECK(left(461, 10) == "80 s left");
  CHECK(left(380, 0) == "4 min left");
  status.round_seconds = 60;
  CHECK(left(380, 0) == "2.0 h left");
}

TEST_CASE("a line is cut to the terminal's columns, between two UTF-8 characters") {
  CHECK(cut_to_columns("short", 10) == "short");
  CHECK(cut_to_columns("exactly 10", 10) == "exactly 10");
  CHECK(cut_to_columns("longer than 10", 10) == "longer th…");
  CHECK(cut_to_columns("a · b · c", 9) == "a · b · c");
  CHECK(cut_to_columns("a · b · c", 4) == "a ·…");
  CHECK(cut_to_columns("a · b · c", 3) == "a …");
  CHECK(cut_to_columns("", 3).empty());
}

}  // namespace
}  // namespace fl::test
