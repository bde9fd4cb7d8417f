// SPDX-License-Identifier: Apache-2.0
// Batches of spans from a real history: none is larger than its limit, none is missing or there
// twice, and the queue of rounds is bounded.
#include "server/traces/trace_reader.hpp"

#include "tests/server/history/records.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>

namespace fl::test {

using namespace fl::server;
namespace {

struct World {
  TemporaryFolder temp;
  std::unique_ptr<Store> store = Store::open({.path = temp / "history.sqlite"}).value();
  RunRecord run = store->runs().create(some_run()).value();
  RecordedRounds rounds;

  World() { store->rounds().set_initial_model(run.id, some_checkpoint(0)).value(); }

  /// A closed round: of its clients every third is late, and the others' updates count.
  void close(Round round, int clients) {
    std::vector<TaskRecord> tasks;
    for (int i = 0; i < clients; ++i) tasks.push_back(some_task("c" + std::to_string(i)));
    tasks = store->rounds().open(run.id, some_round(round), tasks).value();
    std::vector<TaskRecord> decided;
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (i % 3 != 2) decided.push_back(accepted(tasks[i]));
    store->rounds().decide(decided).value();
    store->rounds().commit(some_commit(run.id, round)).value();
    rounds.add({run.id, round, 0.5, 0.25});
  }
  std::unique_ptr<TraceReader> reader() {
    return TraceReader::open(temp / "history.sqlite", false).value();
  }
};

std::map<std::string, int> count_names(const std::vector<Span>& spans) {
  std::map<std::string, int> counts;
  for (const Span& span : spans) ++counts[span.name];
  return counts;
}

TEST_CASE("small rounds share a request, and then there is nothing more") {
  World world;
  for (const Round round : {1U, 2U, 3U}) world.close(round, 4);
  const auto reader = world.reader();
  const TraceBatch batch = reader->next(world.rounds);
  CHECK(batch.rounds.size() == 3);
  CHECK(batch.lost.empty());
  auto counts = count_names(batch.spans);
  CHECK(counts["round 1"] == 1);
  CHECK(counts["round 3"] == 1);
  CHECK(counts["task"] == 12);
  CHECK(counts["store"] == 3);
  CHECK(reader->next(world.rounds).spans.empty());
  world.close(4, 1);
  CHECK(count_names(reader->next(world.rounds).spans)["round 4"] == 1);
}

TEST_CASE("a round of many clients comes in several requests, with its root in the last") {
  World world;
  constexpr int clients = 1000;
  world.close(1, clients);
  world.close(2, 2);
  const auto reader = world.reader();
  std::vector<Span> all;
  int batches = 0;
  for (;;) {
    TraceBatch batch = reader->next(world.rounds);
    if (batch.spans.empty()) break;
    CHECK(batch.spans.size() <= limits::otlp_spans_max);
    CHECK(!batch.trouble);
    ++batches;
    all.insert(all.end(), batch.spans.begin(), batch.spans.end());
  }
  CHECK(batches > 5);
  auto counts = count_names(all);
  CHECK(counts["task"] == clients + 2);
  CHECK(counts["round 1"] == 1);
  CHECK(counts["round 2"] == 1);
  std::set<std::pair<std::string, std::uint64_t>> ids;
  for (const Span& span : all) ids.insert({span.trace.hex(), span.id});
  CHECK(ids.size() == all.size());
  for (const Span& span : all) {
    if (span.name != "round 1") continue;
    const auto late = std::ranges::find(span.attributes, "tributary.late", &Attribute::key);
    CHECK(std::get<std::int64_t>(late->value) == clients / 3);
  }
}

TEST_CASE("a round that is not there is lost, and the next one is read") {
  World world;
  world.rounds.add({world.run.id, 1, 0, 0});
  world.rounds.add({99, 1, 0, 0});
  const auto reader = world.reader();
  const TraceBatch lost = reader->next(world.rounds);
  CHECK(lost.spans.empty());
  CHECK(lost.lost.size() == 2);
  CHECK(lost.trouble);
  world.close(1, 2);
  CHECK(count_names(reader->next(world.rounds).spans)["round 1"] == 1);
}

TEST_CASE("the queue keeps the newest rounds, and counts those that it drops") {
  RecordedRounds rounds;
  for (Round round = 1; round <= limits::trace_rounds_max + 10; ++round)
    rounds.add({1, round, 0, 0});
  CHECK(rounds.waiting() == limits::trace_rounds_max);
  CHECK(rounds.dropped() == 10);
  CHECK(rounds.take()->round == 11);
  CHECK(rounds.waiting() == limits::trace_rounds_max - 1);
  while (rounds.take()) {
  }
  CHECK(rounds.waiting() == 0);
}

}  // namespace
}  // namespace fl::test
