// SPDX-License-Identifier: Apache-2.0
#include "server/history/runs.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

Error no_such_run(RunId run) { return {Errc::not_found, fmt::format("there is no run {}", run)}; }

}  // namespace

Result<RunRecord> Runs::create(const RunRecord& run, Others others) {
  return db_.write([&]() -> Result<RunRecord> {
    if (others == Others::stop)
      FL_CHECK(db_.run("UPDATE run SET state = 'stopped' WHERE state IN ('waiting', 'running')"));
    FL_CHECK(run_table.insert(db_, run));
    RunRecord made = run;
    made.id = db_.last_id();
    // The checkpoints of the first run lie in STATE/checkpoints itself.
    if (made.id > 1) made.checkpoints = fmt::format("run-{}", made.id);
    FL_CHECK(db_.run("UPDATE run SET checkpoints = ?2 WHERE id = ?1", made.id, made.checkpoints));
    return made;
  });
}

Result<std::optional<RunRecord>> Runs::latest() {
  return db_.find(run_table.select("ORDER BY queued AND state = 'stopped' AND NOT EXISTS"
                                   " (SELECT 1 FROM checkpoint WHERE run_id = run.id),"
                                   " id DESC LIMIT 1"),
                  run_table.reader());
}

Result<std::optional<RunRecord>> Runs::newest_begun() {
  return db_.find(run_table.select("ORDER BY EXISTS"
                                   " (SELECT 1 FROM checkpoint WHERE run_id = run.id) DESC,"
                                   " state = 'stopped', id DESC LIMIT 1"),
                  run_table.reader());
}

Result<std::optional<RunRecord>> Runs::next_open() {
  return db_.find(run_table.select("WHERE state IN ('waiting', 'running')"
                                   " ORDER BY state = 'running' DESC, aside_at NULLS FIRST, id"
                                   " LIMIT 1"),
                  run_table.reader());
}

Result<std::size_t> Runs::open_count() {
  FL_TRY(const auto count,
         db_.find("SELECT count(*) FROM run WHERE state IN ('waiting', 'running')",
                  [](const Row& row) { return static_cast<std::size_t>(row.integer(0)); }));
  return count.value();
}

Result<std::optional<RunRecord>> Runs::shown() {
  return db_.find(run_table.select("ORDER BY state = 'running' DESC,"
                                   " EXISTS (SELECT 1 FROM round WHERE run_id = run.id) DESC,"
                                   " state = 'waiting' DESC, aside_at NULLS FIRST,"
                                   " CASE state WHEN 'waiting' THEN -id ELSE id END DESC"
                                   " LIMIT 1"),
                  run_table.reader());
}

Result<std::vector<RunSummary>> Runs::all() {
  FL_TRY(const auto records, db_.query(run_table.select("ORDER BY id"), run_table.reader()));
  std::vector<RunSummary> out;
  for (const RunRecord& record : records) {
    FL_TRY(const auto closed,
           db_.find(
               "SELECT count(*) FROM round_summary WHERE run_id = ?1",
               [](const Row& row) { return static_cast<Round>(row.integer(0)); }, record.id));
    out.push_back({record, closed.value()});
  }
  return out;
}

Result<std::optional<RunRecord>> Runs::find(RunId run) {
  return db_.find(run_table.select("WHERE id = ?1"), run_table.reader(), run);
}

Result<std::optional<RunRecord>> Runs::find_key(const std::string& key) {
  return db_.find(run_table.select("WHERE key = ?1"), run_table.reader(), key);
}

Result<bool> Runs::give_up(RunId run, const std::string& why) {
  return db_.write([&]() -> Result<bool> {
    FL_TRY(const int changed, db_.run("UPDATE run SET state = 'stopped', early_end = ?2"
                                      " WHERE id = ?1 AND state = 'waiting'",
                                      run, why));
    return changed == 1;
  });
}

Result<bool> Runs::step_aside(RunId run) {
  return db_.write([&]() -> Result<bool> {
    FL_TRY(const double now, db_.now());
    FL_TRY(const int changed,
           db_.run("UPDATE run SET aside_at = ?2 WHERE id = ?1 AND state = 'waiting' AND EXISTS"
                   " (SELECT 1 FROM run WHERE id <> ?1 AND state = 'waiting')",
                   run, now));
    return changed == 1;
  });
}

Result<void> Runs::set_state(RunId run, RunState state) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const int changed,
           db_.run("UPDATE run SET state = ?2 WHERE id = ?1", run, to_text(state)));
    if (changed == 0) return no_such_run(run);
    if (state != RunState::finished) return {};
    FL_TRY(const double now, db_.now());
    // If the run is made longer, the round that was left goes on without these.
    FL_CHECK(
        db_.run("UPDATE task SET state = 'lost', decided_at = coalesce(decided_at, ?2),"
                " reason = 'the run ended before the round closed'"
                " WHERE run_id = ?1 AND state IN ('offered', 'accepted') AND round ="
                " (SELECT round FROM round WHERE run_id = ?1 AND ended_at IS NULL)",
                run, now));
    FL_CHECK(
        db_.run("UPDATE task SET state = 'late', decided_at = ?2"
                " WHERE run_id = ?1 AND state = 'offered'",
                run, now));
    return {};
  });
}

Result<void> Runs::change(RunId run, Round rounds_total, const std::string& config_json) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const int changed,
           db_.run("UPDATE run SET rounds_total = ?2, config_json = ?3,"
                   " early_end = iif(config_json = ?3, early_end, ''), state = CASE"
                   "  WHEN state = 'finished' AND ?2 > (SELECT count(*) FROM round"
                   "    WHERE run_id = ?1 AND ended_at IS NOT NULL) THEN 'running'"
                   "  ELSE state END WHERE id = ?1",
                   run, rounds_total, config_json));
    if (changed == 0) return no_such_run(run);
    return {};
  });
}

Result<void> Runs::end_early(RunId run, const std::string& why) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const int changed, db_.run("UPDATE run SET early_end = ?2 WHERE id = ?1", run, why));
    return changed == 0 ? Result<void>(no_such_run(run)) : success();
  });
}

}  // namespace fl::server
