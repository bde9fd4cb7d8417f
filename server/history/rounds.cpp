// SPDX-License-Identifier: Apache-2.0
#include "server/history/rounds.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

Result<std::vector<TaskRecord>> tasks_of(Database& db, RunId run, Round round) {
  return db.query(task_table.select("WHERE run_id = ?1 AND round = ?2 ORDER BY id"),
                  task_table.reader(), run, round);
}

// The functions below are called inside a transaction.

Result<void> insert_checkpoint(Database& db, RunId run, const CheckpointRecord& checkpoint) {
  FL_TRY(const double now, db.now());
  return checkpoint_table.insert(db, checkpoint, {{"run_id", run}, {"made_at", now}});
}

Result<std::vector<TaskRecord>> insert_tasks(Database& db, RunId run, Round round,
                                             std::vector<TaskRecord> tasks) {
  FL_TRY(const double now, db.now());
  for (TaskRecord& task : tasks) {
    FL_ASSERT(task.state == TaskState::offered);
    FL_CHECK(task_table.insert(
        db, task, {{"run_id", run}, {"round", std::int64_t{round}}, {"offered_at", now}}));
    task.id = TaskId{db.last_id()};
    task.round = round;
  }
  return tasks;
}

Result<void> update_task(Database& db, const TaskRecord& task, double now) {
  FL_ASSERT(task.state != TaskState::offered);
  FL_TRY(const int changed,
         task_table.update(db, on_verdict, task, {{"decided_at", now}},
                           "id = ?1 AND state = 'offered'", {number_of(task.id)}));
  if (changed == 1) return {};
  FL_TRY(const auto state, db.find(
                               "SELECT state FROM task WHERE id = ?1",
                               [](const Row& row) { return row.text(0); }, number_of(task.id)));
  if (!state) return Error(Errc::not_found, fmt::format("there is no task {}", task.id));
  return Error(Errc::conflict, fmt::format("task {} of {} can't become {}: it is {} already",
                                           task.id, task.client, to_text(task.state), *state));
}

Result<void> add_to_traffic(Database& db, const std::vector<TaskTraffic>& traffic) {
  for (const TaskTraffic& moved : traffic) {
    FL_TRY(const int changed,
           db.run("UPDATE task SET bytes_up = bytes_up + ?2, bytes_down = bytes_down + ?3,"
                  " seconds = max(seconds, ?4) WHERE id = ?1",
                  number_of(moved.task), moved.bytes_up, moved.bytes_down, moved.seconds));
    if (changed == 0) return Error(Errc::not_found, fmt::format("there is no task {}", moved.task));
  }
  return {};
}

Result<void> set_cosines(Database& db, const std::vector<TaskCosine>& measured) {
  for (const auto& [task, cosine] : measured) {
    FL_TRY(const int changed, db.run("UPDATE task SET cosine = ?2 WHERE id = ?1 AND state = "
                                     "'accepted'",
                                     number_of(task), cosine));
    if (changed == 0)
      return Error(Errc::not_found, fmt::format("there is no accepted task {}", task));
  }
  return {};
}

/// At the end of the newest round, so that last_dropped() finds all that are dropped after it.
Result<void> drop_checkpoints(Database& db, RunId run, const std::vector<Version>& versions) {
  for (const Version version : versions) {
    FL_CHECK(
        db.run("UPDATE checkpoint SET dropped_at ="
               " (SELECT ended_at FROM round WHERE run_id = ?1 AND ended_at IS NOT NULL"
               " ORDER BY round DESC LIMIT 1)"
               " WHERE run_id = ?1 AND version = ?2 AND dropped_at IS NULL",
               run, version));
  }
  return {};
}

/// The error of a round that must be open and is not.
Error not_open(Database& db, RunId run, Round round) {
  const auto found = db.find(
      "SELECT 1 FROM round WHERE run_id = ?1 AND round = ?2",
      [](const Row& row) { return row.integer(0); }, run, round);
  if (!found) return found.error();
  if (!*found) return {Errc::not_found, fmt::format("run {} has no round {}", run, round)};
  return {Errc::conflict, fmt::format("round {} of run {} is closed already", round, run)};
}

Result<void> close_round(Database& db, const RoundCommit& commit) {
  FL_TRY(const int closed,
         db.run("UPDATE round SET ended_at = ?3, train_loss = ?4, bytes_up = ?5, bytes_down = ?6"
                " WHERE run_id = ?1 AND round = ?2 AND ended_at IS NULL",
                commit.run, commit.round, commit.ended_at, commit.train_loss, commit.bytes_up,
                commit.bytes_down));
  if (closed == 0) return not_open(db, commit.run, commit.round);
  FL_CHECK(
      db.run("UPDATE task SET state = 'late', decided_at = ?3"
             " WHERE run_id = ?1 AND round = ?2 AND state = 'offered' AND base_version < ?4",
             commit.run, commit.round, commit.ended_at, commit.oldest_base));
  FL_CHECK(db.run("DELETE FROM masked_message WHERE run_id = ?1 AND round <= ?2", commit.run,
                  commit.round));
  FL_CHECK(set_cosines(db, commit.cosines));
  return add_to_traffic(db, commit.traffic);
}

}  // namespace

Result<void> Rounds::set_initial_model(RunId run, const CheckpointRecord& checkpoint) {
  FL_ASSERT(checkpoint.version == 0);
  return db_.write([&]() -> Result<void> {
    FL_CHECK(insert_checkpoint(db_, run, checkpoint));
    FL_TRY(const int changed,
           db_.run("UPDATE run SET state = 'running' WHERE id = ?1 AND state = 'waiting'", run));
    if (changed == 1) return {};
    return Error(Errc::conflict, fmt::format("run {} does not wait for an initial model", run));
  });
}

Result<std::vector<TaskRecord>> Rounds::open(RunId run, const RoundRecord& round,
                                             std::vector<TaskRecord> tasks) {
  return db_.write([&]() -> Result<std::vector<TaskRecord>> {
    FL_TRY(const auto last,
           db_.find(
               "SELECT ifnull(max(round), 0) FROM round WHERE run_id = ?1",
               [](const Row& row) { return static_cast<Round>(row.integer(0)); }, run));
    if (round.round != *last + 1) {
      return Error(Errc::conflict, fmt::format("round {} of run {} can't open: the last one was {}",
                                               round.round, run, *last));
    }
    FL_CHECK(round_table.insert(db_, round, {{"run_id", run}}));
    FL_CHECK(db_.run("UPDATE task SET round = ?2 WHERE run_id = ?1 AND state = 'offered'", run,
                     round.round));
    return insert_tasks(db_, run, round.round, std::move(tasks));
  });
}

Result<std::vector<TaskRecord>> Rounds::add_tasks(RunId run, Round round,
                                                  std::vector<TaskRecord> tasks) {
  return db_.write([&]() -> Result<std::vector<TaskRecord>> {
    FL_TRY(const auto open,
           db_.find(
               "SELECT 1 FROM round WHERE run_id = ?1 AND round = ?2 AND ended_at IS NULL",
               [](const Row& row) { return row.integer(0); }, run, round));
    if (!open) return not_open(db_, run, round);
    return insert_tasks(db_, run, round, std::move(tasks));
  });
}

Result<void> Rounds::decide(const std::vector<TaskRecord>& tasks) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    for (const TaskRecord& task : tasks) FL_CHECK(update_task(db_, task, now));
    return {};
  });
}

Result<void> Rounds::commit(const RoundCommit& commit) {
  FL_ASSERT(commit.checkpoint.version == commit.round);
  return db_.write([&]() -> Result<void> {
    FL_CHECK(close_round(db_, commit));
    FL_CHECK(insert_checkpoint(db_, commit.run, commit.checkpoint));
    FL_CHECK(
        db_.run("UPDATE client SET last_seen_at = max(coalesce(last_seen_at, 0), ?3) WHERE name IN"
                " (SELECT client FROM task WHERE run_id = ?1 AND round = ?2"
                " AND state = 'accepted')",
                commit.run, commit.round, commit.ended_at));
    FL_CHECK(drop_checkpoints(db_, commit.run, commit.dropped_versions));
    FL_CHECK(
        db_.run("UPDATE run SET state = ?2 WHERE id = ?1", commit.run, to_text(RunState::running)));
    return {};
  });
}

Result<void> Rounds::drop(RunId run, const std::vector<Version>& versions) {
  return db_.write([&]() -> Result<void> { return drop_checkpoints(db_, run, versions); });
}

Result<std::optional<Rounds::StoredRound>> Rounds::unfinished(RunId run) {
  return db_.read([&]() -> Result<std::optional<StoredRound>> {
    FL_TRY(const auto round, db_.find(round_table.select("WHERE run_id = ?1 AND ended_at IS NULL"),
                                      round_table.reader(), run));
    if (!round) return std::optional<StoredRound>();
    FL_TRY(auto tasks, tasks_of(db_, run, round->round));
    StoredRound open{*round, std::move(tasks)};
    return std::optional(std::move(open));
  });
}

Result<Rounds::StoredRound> Rounds::closed(RunId run, Round round) {
  return db_.read([&]() -> Result<StoredRound> {
    FL_TRY(const auto found, db_.find(round_table.select("WHERE run_id = ?1 AND round = ?2"),
                                      round_table.reader(), run, round));
    if (!found) return Error(Errc::not_found, fmt::format("run {} has no round {}", run, round));
    FL_TRY(const auto open,
           db_.find(
               "SELECT 1 FROM round WHERE run_id = ?1 AND round = ?2 AND ended_at IS NULL",
               [](const Row& row) { return row.integer(0); }, run, round));
    if (open)
      return Error(Errc::conflict, fmt::format("round {} of run {} is not over", round, run));
    FL_TRY(auto tasks, tasks_of(db_, run, round));
    return StoredRound{*found, std::move(tasks)};
  });
}

Result<std::vector<TaskRecord>> Rounds::tasks(RunId run, Round round) {
  return tasks_of(db_, run, round);
}

Result<std::vector<TaskRecord>> Rounds::offered_tasks(RunId run) {
  return db_.query(task_table.select("WHERE run_id = ?1 AND state = 'offered' ORDER BY id"),
                   task_table.reader(), run);
}

Result<std::optional<TaskRecord>> Rounds::find_task(RunId run, TaskId task) {
  return db_.find(task_table.select("WHERE run_id = ?1 AND id = ?2"), task_table.reader(), run,
                  number_of(task));
}

Result<std::vector<CheckpointRecord>> Rounds::checkpoints(RunId run) {
  return db_.query(
      checkpoint_table.select("WHERE run_id = ?1 AND dropped_at IS NULL ORDER BY version"),
      checkpoint_table.reader(), run);
}

Result<std::vector<CheckpointRecord>> Rounds::last_dropped(RunId run) {
  return db_.query(
      checkpoint_table.select("WHERE run_id = ?1 AND dropped_at ="
                              " (SELECT max(dropped_at) FROM checkpoint WHERE run_id = ?1)"
                              " ORDER BY version"),
      checkpoint_table.reader(), run);
}

Result<Rounds::Before> Rounds::before(RunId run) {
  return db_.read([&]() -> Result<Before> {
    Before before;
    // With max() SQLite takes the other columns from the row that has the maximum.
    const auto note_norm = [&](const Row& row) {
      before.norms[row.text(0)] = row.real(1);
      return true;
    };
    FL_CHECK(
        db_.query("SELECT t.client, t.norm, max(t.id) FROM task AS t JOIN round AS r"
                  " ON r.run_id = t.run_id AND r.round = t.round"
                  " WHERE t.run_id = ?1 AND t.norm > 0"
                  " AND (t.state = 'refused' OR r.ended_at IS NOT NULL) GROUP BY t.client",
                  note_norm, run));
    const auto note_last = [&](const Row& row) {
      before.population = unsigned_of(row, 0);
      return true;
    };
    FL_CHECK(
        db_.query("SELECT population FROM round WHERE run_id = ?1 AND ended_at IS NOT NULL"
                  " ORDER BY round DESC LIMIT 1",
                  note_last, run));
    const auto note_client = [&](const Row& row) {
      before.examples[row.text(0)] = unsigned_of(row, 1);
      return true;
    };
    FL_CHECK(
        db_.query("SELECT client, examples, max(id) FROM task WHERE run_id = ?1"
                  " GROUP BY client",
                  note_client, run));
    return before;
  });
}

Result<std::map<std::string, std::uint64_t>> Rounds::accepted_counts(RunId run) {
  std::map<std::string, std::uint64_t> counts;
  const auto note = [&counts](const Row& row) {
    counts[row.text(0)] = unsigned_of(row, 1);
    return true;
  };
  FL_CHECK(
      db_.query("SELECT client, count(*) FROM task WHERE run_id = ?1 AND state = 'accepted'"
                " GROUP BY client",
                note, run));
  return counts;
}

Result<std::map<std::string, TaskId>> Rounds::newest_deltas(RunId run) {
  std::map<std::string, TaskId> newest;
  const auto note = [&newest](const Row& row) {
    newest[row.text(0)] = TaskId{row.integer(1)};
    return true;
  };
  FL_CHECK(
      db_.query("SELECT t.client, max(t.id) FROM task AS t"
                " JOIN round AS r ON r.run_id = t.run_id AND r.round = t.round"
                " WHERE t.run_id = ?1 AND t.state = 'accepted' AND t.codec LIKE 'delta+%'"
                " AND r.ended_at IS NOT NULL GROUP BY t.client",
                note, run));
  return newest;
}

Result<std::map<std::string, Misses>> Rounds::misses(RunId run, double deadline_s, double now) {
  std::map<std::string, Misses> found;
  const auto note = [&](const Row& row) {
    Misses& misses = found[row.text(0)];
    misses.in_a_row = static_cast<int>(row.integer(1));
    misses.lost_seconds = row.real(2);
    misses.seconds_since = now - row.optional_real(3).value_or(now);
    return true;
  };
  // With max() SQLite takes the other columns from the row that has the maximum. The times of a
  // round are sums of seconds since 1970: they are right to a microsecond, not to the last bit.
  FL_CHECK(
      db_.query("SELECT t.client, count(*),"
                " iif(t.state = 'late', r.ended_at - r.started_at, t.seconds),"
                " r.ended_at, max(t.id) FROM task AS t"
                " JOIN round AS r ON r.run_id = t.run_id AND r.round = t.round"
                " LEFT JOIN (SELECT client, max(id) AS id FROM task"
                " WHERE run_id = ?1 AND state = 'accepted' GROUP BY client) AS counted"
                " ON counted.client = t.client"
                " LEFT JOIN client AS c ON c.name = t.client"
                " WHERE t.run_id = ?1 AND t.id > ifnull(counted.id, 0)"
                " AND t.decided_at > ifnull(c.pardoned_at, 0)"
                " AND (t.state IN ('lost', 'refused') OR (t.state = 'late' AND ?2 > 0"
                " AND r.ended_at - r.started_at >= ?2 - 0.001)) GROUP BY t.client",
                note, run, deadline_s));
  return found;
}

Result<std::map<std::string, ClientHistory>> Rounds::client_histories(RunId run) {
  return db_.read([&]() -> Result<std::map<std::string, ClientHistory>> {
    std::map<std::string, ClientHistory> histories;
    // With max() SQLite takes the other columns from the row that has the maximum.
    const auto newest = [](std::string_view columns, std::string_view condition) {
      return fmt::format(
          "SELECT t.client, {}, max(t.id) FROM task AS t"
          " JOIN round AS r ON r.run_id = t.run_id AND r.round = t.round"
          " WHERE t.run_id = ?1 AND r.ended_at IS NOT NULL AND {} GROUP BY t.client",
          columns, condition);
    };
    const auto note_asked = [&](const Row& row) -> Result<bool> {
      ClientHistory& history = histories[row.text(0)];
      history.last_round = static_cast<Round>(row.integer(1));
      FL_TRY(history.last_state, task_state_of(row.text(2)));
      history.last_seconds = row.real(3);
      if (history.last_state == TaskState::late) history.late_codec = row.text(4);
      return true;
    };
    FL_CHECK(db_.query(newest("t.round, t.state, t.seconds, t.codec", "true"), note_asked, run));
    const auto note_accepted = [&](const Row& row) {
      ClientHistory& history = histories[row.text(0)];
      history.loss = row.optional_real(1);
      history.seconds = row.real(2);
      return true;
    };
    FL_CHECK(db_.query(newest("t.loss, t.seconds", "t.state = 'accepted'"), note_accepted, run));
    const auto note_pace = [&](const Row& row) {
      ClientHistory& history = histories[row.text(0)];
      history.update_bytes = unsigned_of(row, 1);
      history.ready_seconds = row.real(2);
      history.upload_seconds = row.real(3);
      return true;
    };
    FL_CHECK(db_.query(newest("t.update_bytes, t.ready_seconds, t.upload_seconds",
                              "t.state = 'accepted' AND t.upload_seconds > 0"),
                       note_pace, run));
    return histories;
  });
}

}  // namespace fl::server
