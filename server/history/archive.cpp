// SPDX-License-Identifier: Apache-2.0
#include "server/history/archive.hpp"

#include "server/history/runs.hpp"
#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

/// A transaction of so many rows is short: a server beside us waits for no more than that.
constexpr int rows_at_a_time = 10'000;

/// Runs a DELETE with a LIMIT until it removes nothing more.
Result<std::uint64_t> delete_all(Database& db, std::string_view sql, RunId run) {
  std::uint64_t removed = 0;
  for (;;) {
    FL_TRY(const int changed, db.write([&] { return db.run(sql, run, rows_at_a_time); }));
    removed += static_cast<std::uint64_t>(changed);
    if (changed < rows_at_a_time) return removed;
  }
}

}  // namespace

Result<void> Archive::copy_into(const std::filesystem::path& file) {
  FL_CHECK(db_.run("VACUUM INTO ?1", file.string()));
  return {};
}

Result<void> Archive::forget_checkpoint(RunId run, Version version) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    FL_CHECK(
        db_.run("UPDATE checkpoint SET dropped_at = ?3 WHERE run_id = ?1 AND version = ?2"
                " AND dropped_at IS NULL",
                run, version, now));
    // Nobody can train from it any more.
    FL_CHECK(
        db_.run("UPDATE task SET state = 'late', decided_at = ?3 WHERE run_id = ?1"
                " AND base_version = ?2 AND state = 'offered'",
                run, version, now));
    return {};
  });
}

Result<void> Archive::forget_update(TaskId task, std::string_view reason) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const int changed, db_.run("UPDATE task SET state = 'lost', reason = ?2 WHERE id = ?1"
                                      " AND state = 'accepted' AND EXISTS (SELECT 1 FROM round AS r"
                                      "   WHERE r.run_id = task.run_id AND r.round = task.round"
                                      "   AND r.ended_at IS NULL)",
                                      number_of(task), reason));
    if (changed == 1) return {};
    return Error(Errc::not_found, fmt::format("no open round has counted task {}", task));
  });
}

Result<std::vector<EndedRun>> Archive::ended_runs() {
  const auto read = [](const Row& row) {
    EndedRun run;
    run.id = row.integer(0);
    run.ended_at = row.real(1);
    run.tasks = unsigned_of(row, 2);
    return run;
  };
  return db_.query(
      "SELECT id, max(started_at,"
      "   ifnull((SELECT max(ended_at) FROM round WHERE run_id = run.id), 0)),"
      "  (SELECT count(*) FROM task WHERE run_id = run.id)"
      " FROM run WHERE state IN ('finished', 'stopped') ORDER BY id",
      read);
}

Result<void> Archive::remove_run(RunId run) {
  FL_TRY(const auto record, runs_.find(run));
  if (!record) return Error(Errc::not_found, fmt::format("there is no run {}", run));
  if (record->state != RunState::finished && record->state != RunState::stopped)
    return Error(
        Errc::conflict,
        fmt::format(
            "run {} is not over: only runs that have finished or were stopped can be removed",
            run));
  FL_CHECK(delete_all(db_,
                      "DELETE FROM task WHERE id IN"
                      " (SELECT id FROM task WHERE run_id = ?1 LIMIT ?2)",
                      run));
  FL_CHECK(delete_all(db_,
                      "DELETE FROM metric WHERE (run_id, version, client, name) IN (SELECT run_id,"
                      " version, client, name FROM metric WHERE run_id = ?1 LIMIT ?2)",
                      run));
  return db_.write([&]() -> Result<void> {
    // Looks again in this transaction: a server may have gone on with it.
    FL_TRY(const auto now, runs_.find(run));
    if (!now || now->state != record->state)
      return Error(Errc::conflict, fmt::format("run {} has begun again", run));
    for (const char* table :
         {"metric", "metric_declaration", "checkpoint", "masked_message", "task", "round", "event"})
      FL_CHECK(db_.run(fmt::format("DELETE FROM {} WHERE run_id = ?1", table), run));
    FL_CHECK(db_.run("DELETE FROM run WHERE id = ?1", run));
    return {};
  });
}

Result<void> Archive::give_back_space() {
  FL_CHECK(db_.script("VACUUM"));
  return db_.script("PRAGMA wal_checkpoint(TRUNCATE)");
}

}  // namespace fl::server
