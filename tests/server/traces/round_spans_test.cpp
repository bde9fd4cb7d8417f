// SPDX-License-Identifier: Apache-2.0
// The spans of a round: their ids, where they begin and end, and what they tell.
#include "server/traces/round_spans.hpp"

#include "tests/server/history/records.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace fl::test {

using namespace fl::server;
namespace {

const Digest trace = trace_id_of("0123456789abcdef", 7);

TaskRow accepted_row() {
  TaskRow row;
  row.task = accepted(some_task("site-3"));
  row.task.id = TaskId{41};
  row.offered_at = 1000;
  row.decided_at = 1010;
  row.bytes_up = 12'500;
  row.bytes_down = 70'000;
  return row;
}

std::vector<Span> spans_of(const TaskRow& row, bool by_client = false) {
  std::vector<Span> spans;
  add_task_spans(trace, row, by_client, spans);
  return spans;
}

std::string names(const std::vector<Span>& spans) {
  std::string all;
  for (const Span& span : spans) all += span.name + " ";
  return all;
}

const Attribute* find(const Span& span, const std::string& key) {
  const auto found = std::ranges::find(span.attributes, key, &Attribute::key);
  return found == span.attributes.end() ? nullptr : &*found;
}

bool has(const Span& span, const std::string& key, decltype(Attribute::value) value) {
  const Attribute* const found = find(span, key);
  return found != nullptr && found->value == value;
}

TEST_CASE("a task's reason leaves the server without figures of its client's data") {
  TaskRow row = accepted_row();
  row.task.state = TaskState::refused;
  row.task.reason = "its norm is 987.5, more than 4 times the median 1.25 (--norm-limit)";
  CHECK(spans_of(row)[0].failure == "its norm is too large beside the others' (--norm-limit)");
}

TEST_CASE("a task's parts follow one another, and waiting is the rest until the verdict") {
  const auto spans = spans_of(accepted_row());
  REQUIRE(names(spans) ==
          "task download training coding residual digest sync files upload waiting ");
  CHECK(spans[0].begin == 1000);
  CHECK(spans[0].end == 1010);
  CHECK(!spans[0].has_failed);
  // 4.5 s until the upload: 3.5 s of training, 0.25 s of saving, of which coding is a half and the
  // residual a quarter; then 0.75 s of upload.
  const double ends[] = {1000.75,     1004.25, 1004.375, 1004.4375, 1004.453125,
                         1004.484375, 1004.5,  1005.25,  1010};
  double before = 1000;
  for (std::size_t i = 1; i < spans.size(); ++i) {
    CHECK(spans[i].begin == before);
    CHECK(spans[i].end == doctest::Approx(ends[i - 1]));
    CHECK(spans[i].parent == spans[0].id);
    CHECK(spans[i].trace == trace);
    before = spans[i].end;
  }
}

TEST_CASE("what a client claims of its times never reaches beyond its task") {
  TaskRow row = accepted_row();
  row.task.train_seconds = 1e300;
  row.task.ready_seconds = 1e301;
  auto spans = spans_of(row);
  CHECK(names(spans) == "task download ");
  CHECK(spans.back().end == 1010);
  row.task.ready_seconds = -5;
  row.task.train_seconds = std::nan("");
  row.task.encode_seconds = row.task.save_seconds = 0;
  row.task.residual_seconds = row.task.digest_seconds = row.task.sync_seconds = 0;
  spans = spans_of(row);
  CHECK(names(spans) == "task upload waiting ");
  row.decided_at = 999;  // The clock was set back.
  spans = spans_of(row);
  CHECK(names(spans) == "task ");
  CHECK(spans[0].end == 1000);
}

TEST_CASE("a task without an update that counts is an error with the verdict's reason") {
  TaskRow row;
  row.task = some_task("site-3");
  row.offered_at = 1000;
  row.decided_at = 1010;
  row.task.state = TaskState::refused;
  row.task.reason = "its norm is 7000 times the median";
  auto spans = spans_of(row);
  REQUIRE(names(spans) == "task ");  // Nothing is known of where its time went.
  CHECK(spans[0].has_failed);
  CHECK(spans[0].failure == "its norm is 7000 times the median");
  CHECK(has(spans[0], "tributary.outcome", std::string("refused")));
  row.task.state = TaskState::late;
  row.task.reason.clear();
  CHECK(spans_of(row)[0].failure == "the round closed without it");
}

TEST_CASE("clients are named only on demand, and nothing tells of their data") {
  const auto quiet = spans_of(accepted_row());
  const auto named = spans_of(accepted_row(), true);
  CHECK(has(named[0], "tributary.client", std::string("site-3")));
  for (const Span& span : quiet) {
    for (const Attribute& attribute : span.attributes) {
      const auto* const text = std::get_if<std::string>(&attribute.value);
      CHECK((text == nullptr || text->find("site-3") == std::string::npos));
      for (const char* secret : {"loss", "norm", "examples", "nmse"})
        CHECK(attribute.key.find(secret) == std::string::npos);
    }
  }
  CHECK(has(quiet[0], "tributary.task", std::int64_t{41}));
  CHECK(has(quiet[0], "tributary.codec", std::string("qsgd:8")));
  CHECK(has(quiet[0], "tributary.update.bytes", std::int64_t{12'345}));
  CHECK(has(quiet[0], "tributary.bytes.down", std::int64_t{70'000}));
}

TEST_CASE("the round is the root, with its settings, its counts and two steps") {
  RunRecord run = some_run();
  run.id = 3;
  run.config_json = R"({"strategy": "fedavg", "codec": "qsgd:8", "lr": 0.1, "mode": 7})";
  RoundSummary summary;
  summary.round = 7;
  summary.started_at = 2000;
  summary.seconds = 12;
  summary.clients_offered = 5;
  summary.clients_accepted = 2;
  summary.train_loss = 0.5;
  summary.model_digest = "ab";
  TaskCounts counts{};
  counts[static_cast<std::size_t>(TaskState::lost)] = 2;
  std::vector<Span> spans;
  add_round_spans(trace, run, summary, {3, 7, 0.5, 0.25}, counts, spans);
  REQUIRE(names(spans) == "aggregation store round 7 ");
  const Span& root = spans[2];
  CHECK(root.parent == 0);
  CHECK(root.begin == 2000);
  CHECK(root.end == 2012.25);
  CHECK(!root.has_failed);
  CHECK(spans[0].begin == 2011.5);
  CHECK(spans[0].end == 2012);
  CHECK(spans[1].begin == 2012);
  CHECK(spans[1].end == 2012.25);
  CHECK(spans[0].parent == root.id);
  CHECK(spans_of(accepted_row())[0].parent == root.id);
  CHECK(has(root, "tributary.run", run.key));
  CHECK(has(root, "tributary.round", std::int64_t{7}));
  CHECK(has(root, "tributary.method", std::string("fedavg")));
  CHECK(has(root, "tributary.codec", std::string("qsgd:8")));
  CHECK(find(root, "tributary.mode") == nullptr);  // It is no text.
  CHECK(has(root, "tributary.cohort", std::int64_t{5}));
  CHECK(has(root, "tributary.accepted", std::int64_t{2}));
  CHECK(has(root, "tributary.lost", std::int64_t{2}));
  CHECK(has(root, "tributary.digest", std::string("ab")));
  CHECK(has(root, "tributary.train_loss", 0.5));
}

TEST_CASE("ids are the same each time, and differ within a trace and between rounds and runs") {
  CHECK(trace_id_of("0123456789abcdef", 7) == trace);
  CHECK(trace_id_of("0123456789abcdef", 8) != trace);
  CHECK(trace_id_of("0123456789abcdee", 7) != trace);
  std::set<std::uint64_t> ids;
  std::vector<Span> spans;
  for (std::int64_t id = 1; id <= 200; ++id) {
    TaskRow row = accepted_row();
    row.task.id = TaskId{id};
    add_task_spans(trace, row, false, spans);
  }
  add_round_spans(trace, some_run(), {}, {}, {}, spans);
  for (const Span& span : spans) ids.insert(span.id);
  CHECK(ids.size() == spans.size());
  CHECK(!ids.contains(0));
  CHECK(spans[0].id == spans_of([] {
                         TaskRow row = accepted_row();
                         row.task.id = TaskId{1};
                         return row;
                       }())[0]
                           .id);
}

}  // namespace
}  // namespace fl::test
