// SPDX-License-Identifier: Apache-2.0
#include "server/history/history_tally.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/store.hpp"

#include <algorithm>
#include <vector>

namespace fl::server {
namespace {

/// Rounds of one call; the next one goes on.
constexpr int rounds_of_turn = 1000;

struct ClosedRound {
  std::int64_t run = 0;
  std::int64_t round = 0;
  double seconds = 0;
  double ended_at = 0;
  std::int64_t bytes_up = 0;
  std::int64_t bytes_down = 0;
};

struct ClosedTask {
  std::string client;
  std::string state;
  std::string codec;
  double train_s = 0;
  double upload_s = 0;
  std::int64_t bytes_up = 0;
  std::int64_t bytes_down = 0;
  std::int64_t update_bytes = 0;
  std::int64_t raw_bytes = 0;
};

std::uint64_t positive(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

}  // namespace

void SecondsHistogram::add(double seconds) {
  const auto bound = std::ranges::lower_bound(bounds, seconds);
  if (bound != bounds.end()) ++counts[static_cast<std::size_t>(bound - bounds.begin())];
  ++count;
  sum += seconds;
}

HistoryReader::HistoryReader(std::unique_ptr<Database> database, bool by_client)
    : database_(std::move(database)), by_client_(by_client) {}

HistoryReader::~HistoryReader() = default;

Result<std::unique_ptr<HistoryReader>> HistoryReader::open(const std::filesystem::path& history,
                                                           bool by_client) {
  Database::Options options;
  options.path = history;
  options.read_only = true;
  options.busy_ms_max = static_cast<int>(Store::busy_max.count());
  FL_TRY(auto database, Database::open(options));
  std::unique_ptr<HistoryReader> reader(new HistoryReader(std::move(database), by_client));
  const auto position = [](const Row& row) {
    return std::array{row.integer(0), row.integer(1), row.integer(2)};
  };
  FL_TRY(const auto last,
         reader->database_->query(
             "SELECT coalesce(max(r.run_id), 0),"
             " coalesce((SELECT max(o.round) FROM round AS o WHERE o.run_id = max(r.run_id)"
             " AND o.ended_at IS NOT NULL), 0),"
             " (SELECT coalesce(max(id), 0) FROM event)"
             " FROM round AS r WHERE r.ended_at IS NOT NULL",
             position));
  reader->run_ = last.front()[0];
  reader->round_ = last.front()[1];
  reader->event_ = last.front()[2];
  return reader;
}

Result<void> HistoryReader::catch_up() {
  const auto closed = [](const Row& row) {
    return ClosedRound{row.integer(0), row.integer(1), row.real(2),
                       row.real(3),    row.integer(4), row.integer(5)};
  };
  FL_TRY(const auto rounds,
         database_->query("SELECT run_id, round, ended_at - started_at, ended_at, bytes_up,"
                          " bytes_down FROM round WHERE ended_at IS NOT NULL"
                          " AND (run_id > ?1 OR (run_id = ?1 AND round > ?2))"
                          " ORDER BY run_id, round LIMIT ?3",
                          closed, run_, round_, rounds_of_turn));
  for (const ClosedRound& round : rounds) {
    FL_CHECK(read_round(round.run, round.round));
    run_ = round.run;
    round_ = round.round;
    tally_.round_s.add(std::max(round.seconds, 0.0));
    tally_.bytes_up += positive(round.bytes_up);
    tally_.bytes_down += positive(round.bytes_down);
    tally_.last_round_at = std::max(tally_.last_round_at, round.ended_at);
  }
  return read_events();
}

Result<void> HistoryReader::read_round(std::int64_t run, std::int64_t round) {
  const auto task_of = [](const Row& row) {
    return ClosedTask{row.text(0),    row.text(1),    row.text(2),    row.real(3),   row.real(4),
                      row.integer(5), row.integer(6), row.integer(7), row.integer(8)};
  };
  FL_TRY(const auto tasks,
         database_->query("SELECT client, state, codec, train_seconds, upload_seconds, bytes_up,"
                          " bytes_down, update_bytes, raw_bytes FROM task"
                          " WHERE run_id = ?1 AND round = ?2 AND state <> 'offered'",
                          task_of, run, round));
  for (const ClosedTask& task : tasks) {
    ++tally_.updates[task.state];
    if (task.state == "accepted") {
      tally_.upload_s.add(task.upload_s);
      tally_.train_s.add(task.train_s);
      HistoryTally::Codec& codec = tally_.codecs[task.codec];
      ++codec.updates;
      codec.bytes += positive(task.update_bytes);
      codec.raw_bytes += positive(task.raw_bytes);
    }
    if (!by_client_) continue;
    HistoryTally::Client& client = tally_.clients[task.client];
    ++client.updates[task.state];
    client.bytes_up += positive(task.bytes_up);
    client.bytes_down += positive(task.bytes_down);
  }
  return {};
}

Result<void> HistoryReader::read_events() {
  const auto event_of = [](const Row& row) { return std::pair(row.integer(0), row.text(1)); };
  FL_TRY(
      const auto events,
      database_->query("SELECT id, level FROM event WHERE id > ?1 ORDER BY id", event_of, event_));
  for (const auto& [id, level] : events) {
    event_ = id;
    ++tally_.events[level];
  }
  return {};
}

}  // namespace fl::server
