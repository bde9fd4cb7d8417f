// SPDX-License-Identifier: Apache-2.0
// Opening the store; runs, events and summaries. store_rounds.cpp and store_clients.cpp have the
// rest.
#include "server/history/store.hpp"

#include "server/history/own_schema.hpp"
#include "server/history/schema.hpp"
#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace fl {

namespace {

/// Switches to WAL and returns the journal's mode afterwards. For a new file SQLite needs the lock
/// for that, and does not wait for it as it waits for a transaction. So we wait here: fl-server may
/// start beside `enroll`.
Result<std::optional<std::string>> use_wal(Database& db) {
  constexpr std::chrono::milliseconds pause{10};
  const auto until = std::chrono::steady_clock::now() + Store::busy_max;
  for (;;) {
    auto mode = db.find("PRAGMA journal_mode = WAL", [](const Row& row) { return row.text(0); });
    const bool is_busy = !mode && mode.error().code() == Errc::unavailable;
    if (!is_busy || std::chrono::steady_clock::now() >= until) return mode;
    std::this_thread::sleep_for(pause);
  }
}

/// Sets up the connection and the schema. Nothing is written before the file is known to be ours.
Result<void> prepare(Database& db, const Store::Options& options) {
  if (options.exclusive) FL_CHECK(db.script("PRAGMA locking_mode = EXCLUSIVE"));
  FL_CHECK(db.script(options.durable ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = OFF"));
  FL_CHECK(
      db.script("PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;"
                "PRAGMA cell_size_check = ON"));
  const int newest = static_cast<int>(history_migrations().size());
  FL_TRY(const int version, check_schema(db, newest));
  FL_CHECK(check_own_schema(db));
  if (version != newest && (options.read_only || !options.migrates)) {
    return Error(Errc::conflict,
                 fmt::format("its schema is version {}, and this program needs {}: start fl-server "
                             "once to migrate it",
                             version, newest));
  }
  if (options.read_only) return {};
  FL_TRY(const auto mode, use_wal(db));
  if (mode != "wal")
    return Error(Errc::io, "its file system does not let SQLite use a WAL: use a local disk");
  // After a burst (a long reader beside us) the WAL file shrinks back to this.
  FL_CHECK(db.script("PRAGMA journal_size_limit = 16777216"));
  FL_CHECK(migrate(db, history_migrations()));
  // If the last server was killed after a failed sync, the WAL may have pages that are in the
  // kernel's cache but will never reach the disk; whatever is appended behind them would be lost
  // with them. So they are copied into the database file and synced there. A power loss could still
  // bring the old WAL back, until a commit (of nothing) has begun a new one.
  FL_CHECK(db.script("PRAGMA wal_checkpoint(TRUNCATE)"));
  return db.write([&] { return db.script(fmt::format("PRAGMA user_version = {}", newest)); });
}

Result<std::unique_ptr<Database>> open_and_prepare(const Database::Options& connection,
                                                   const Store::Options& options) {
  FL_TRY(auto db, Database::open(connection));
  FL_CHECK(prepare(*db, options));
  return db;
}

/// Even to read a database with a WAL, SQLite makes files beside it, which read-only media forbid.
/// If all is in the database file, that is not needed as long as nobody writes.
Result<std::unique_ptr<Database>> open_read_only(Database::Options connection,
                                                 const Store::Options& options) {
  auto db = open_and_prepare(connection, options);
  std::error_code none;
  // SQLite reports its own files as missing where they can't be made.
  const bool may_be_read_only =
      !db && (db.error().code() == Errc::io || (db.error().code() == Errc::not_found &&
                                                std::filesystem::exists(options.path, none)));
  if (!may_be_read_only) return db;
  const auto wal_bytes = std::filesystem::file_size(options.path.string() + "-wal", none);
  if (!none && wal_bytes > 0) {
    return Error(Errc::io, fmt::format("{}. Where nothing can be written, only the history of a "
                                       "server that has ended can be read; otherwise copy the "
                                       "folder to a place where you may write",
                                       db.error().message()));
  }
  connection.is_unchanging = true;
  return open_and_prepare(connection, options);
}

Error no_such_run(RunId run) { return {Errc::not_found, fmt::format("there is no run {}", run)}; }

}  // namespace

Store::Store(std::unique_ptr<Database> db) : db_(std::move(db)) {}
Store::~Store() = default;

sqlite3* Store::raw() { return db_->raw(); }

Result<std::unique_ptr<Store>> Store::open(const Options& options) {
  Database::Options connection;
  connection.path = options.path;
  connection.vfs = options.vfs;
  connection.read_only = options.read_only;
  connection.busy_ms_max = static_cast<int>(busy_max.count());
  auto db = options.read_only ? open_read_only(connection, options)
                              : open_and_prepare(connection, options);
  if (!db) return db.error().at("history " + options.path.string());
  return std::unique_ptr<Store>(new Store(std::move(*db)));
}

Result<RunRecord> Store::create_run(const RunRecord& run, Others others) {
  return db_->write([&]() -> Result<RunRecord> {
    if (others == Others::stop)
      FL_CHECK(db_->run("UPDATE run SET state = 'stopped' WHERE state IN ('waiting', 'running')"));
    FL_CHECK(run_table.insert(*db_, run));
    RunRecord made = run;
    made.id = db_->last_id();
    // The checkpoints of the first run lie in STATE/checkpoints itself.
    if (made.id > 1) made.checkpoints = fmt::format("run-{}", made.id);
    FL_CHECK(db_->run("UPDATE run SET checkpoints = ?2 WHERE id = ?1", made.id, made.checkpoints));
    return made;
  });
}

Result<std::optional<RunRecord>> Store::latest_run() {
  return db_->find(run_table.select("ORDER BY queued AND state = 'stopped' AND NOT EXISTS"
                                    " (SELECT 1 FROM checkpoint WHERE run_id = run.id),"
                                    " id DESC LIMIT 1"),
                   run_table.reader());
}

Result<std::optional<RunRecord>> Store::open_run() {
  return db_->find(run_table.select("WHERE state IN ('waiting', 'running') ORDER BY id LIMIT 1"),
                   run_table.reader());
}

Result<std::size_t> Store::open_runs() {
  FL_TRY(const auto count,
         db_->find("SELECT count(*) FROM run WHERE state IN ('waiting', 'running')",
                   [](const Row& row) { return static_cast<std::size_t>(row.integer(0)); }));
  return count.value();
}

Result<std::optional<RunRecord>> Store::shown_run() {
  return db_->find(
      run_table.select(
          "ORDER BY state = 'running' DESC,"
          " EXISTS (SELECT 1 FROM round WHERE run_id = run.id) DESC,"
          " state = 'waiting' DESC, CASE state WHEN 'waiting' THEN -id ELSE id END DESC"
          " LIMIT 1"),
      run_table.reader());
}

Result<std::vector<RunSummary>> Store::runs() {
  FL_TRY(const auto records, db_->query(run_table.select("ORDER BY id"), run_table.reader()));
  std::vector<RunSummary> out;
  for (const RunRecord& record : records) {
    FL_TRY(const auto closed,
           db_->find(
               "SELECT count(*) FROM round_summary WHERE run_id = ?1",
               [](const Row& row) { return static_cast<Round>(row.integer(0)); }, record.id));
    out.push_back({record, closed.value()});
  }
  return out;
}

Result<std::optional<RunRecord>> Store::find_run(RunId run) {
  return db_->find(run_table.select("WHERE id = ?1"), run_table.reader(), run);
}

Result<bool> Store::drop_queued_run(RunId run) {
  return db_->write([&]() -> Result<bool> {
    FL_TRY(
        const int changed,
        db_->run("UPDATE run SET state = 'stopped' WHERE id = ?1 AND queued AND state = 'waiting'"
                 " AND EXISTS (SELECT 1 FROM run AS before WHERE before.id < ?1"
                 "             AND before.state IN ('waiting', 'running'))",
                 run));
    return changed == 1;
  });
}

Result<void> Store::set_run_state(RunId run, RunState state) {
  return db_->write([&]() -> Result<void> {
    FL_TRY(const int changed,
           db_->run("UPDATE run SET state = ?2 WHERE id = ?1", run, to_text(state)));
    if (changed == 0) return no_such_run(run);
    if (state != RunState::finished) return {};
    FL_TRY(const double now, db_->now());
    FL_CHECK(
        db_->run("UPDATE task SET state = 'late', decided_at = ?2"
                 " WHERE run_id = ?1 AND state = 'offered'",
                 run, now));
    return {};
  });
}

Result<void> Store::change_run(RunId run, Round rounds_total, const std::string& config_json) {
  return db_->write([&]() -> Result<void> {
    FL_TRY(const int changed,
           db_->run("UPDATE run SET rounds_total = ?2, config_json = ?3,"
                    " early_end = iif(config_json = ?3, early_end, ''), state = CASE"
                    "  WHEN state = 'finished' AND ?2 > (SELECT count(*) FROM round"
                    "    WHERE run_id = ?1 AND ended_at IS NOT NULL) THEN 'running'"
                    "  ELSE state END WHERE id = ?1",
                    run, rounds_total, config_json));
    if (changed == 0) return no_such_run(run);
    return {};
  });
}

Result<void> Store::end_early(RunId run, const std::string& why) {
  return db_->write([&]() -> Result<void> {
    FL_TRY(const int changed, db_->run("UPDATE run SET early_end = ?2 WHERE id = ?1", run, why));
    return changed == 0 ? Result<void>(no_such_run(run)) : success();
  });
}

Result<void> Store::add_event(RunId run, EventLevel level, std::string_view text) {
  return db_->write([&]() -> Result<void> {
    FL_TRY(const double now, db_->now());
    FL_CHECK(event_table.insert(*db_, EventRecord{run, now, level, std::string(text)}));
    FL_CHECK(
        db_->run("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?1", events_max));
    return {};
  });
}

void note_event(Store& store, RunId run, EventLevel level, std::string_view text) {
  if (auto written = store.add_event(run, level, text); !written)
    log_warn("this event is not in the history: {}", written.error().message());
}

/// In the caller's transaction.
Result<void> Store::note_security(AuditKind kind, std::string_view client, std::string_view text) {
  FL_TRY(const double now, db_->now());
  return audit_table.insert(*db_, AuditRecord{now, kind, std::string(client), std::string(text)});
}

Result<void> Store::add_audit(AuditKind kind, std::string_view client, std::string_view text,
                              std::string_view who) {
  const std::string whose = !who.empty()     ? std::string(who)
                            : client.empty() ? "a stranger"
                                             : fmt::format("'{}'", client);
  if (!audit_lines_.passes(fmt::format("{} of {}", to_text(kind), whose))) return {};
  return db_->write([&] { return note_security(kind, client, text); });
}

Result<void> Store::add_audit_counts() {
  const auto counts = audit_lines_.take_left_out();
  if (counts.empty()) return {};
  const auto written = db_->write([&]() -> Result<void> {
    for (const auto& count : counts)
      FL_CHECK(note_security(AuditKind::repeats, "", to_string(count)));
    return {};
  });
  if (!written) audit_lines_.put_back(counts);
  return written;
}

Result<std::vector<AuditRecord>> Store::audit(const std::string& client) {
  return db_->query(audit_table.select("WHERE ?1 = '' OR client = ?1 ORDER BY id"),
                    audit_table.reader(), client);
}

Result<std::int64_t> Store::audit_rows() {
  FL_TRY(const auto rows, db_->find("SELECT ifnull(max(id), 0) FROM audit",
                                    [](const Row& row) { return row.integer(0); }));
  return *rows;
}

Result<std::int64_t> Store::data_version() {
  FL_TRY(const auto version,
         db_->find("PRAGMA data_version", [](const Row& row) { return row.integer(0); }));
  return *version;
}

Result<std::vector<RoundSummary>> Store::summary(std::optional<RunId> run) {
  FL_TRY(auto rounds, db_->query(round_summary_view.select(
                                     "WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, round"),
                                 round_summary_view.reader(), run));
  FL_CHECK(add_main_metrics(rounds, 0));
  return rounds;
}

Result<std::vector<EventRecord>> Store::events(std::optional<RunId> run) {
  return db_->query(
      event_table.select("WHERE ?1 IS NULL OR run_id IS NULL OR run_id = ?1 ORDER BY id"),
      event_table.reader(), run);
}

Result<std::vector<CodecSummary>> Store::codecs(std::optional<RunId> run) {
  return db_->query(
      codec_summary_view.select("WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, codec"),
      codec_summary_view.reader(), run);
}

Result<std::vector<CodecAsked>> Store::codecs_asked(std::optional<RunId> run) {
  return db_->query(codec_asked_table.select(
                        "WHERE codec_reason <> '' AND (?1 IS NULL OR run_id = ?1) ORDER BY id"),
                    codec_asked_table.reader(), run);
}

Result<std::vector<RoundSummary>> Store::summary_page(RunId run, Round after, int rounds_max,
                                                      std::uint32_t clients_min) {
  FL_TRY(auto rounds, db_->query(round_page.select("WHERE r.run_id = ?1 AND r.round > ?2"
                                                   " AND r.ended_at IS NOT NULL"
                                                   " ORDER BY r.round LIMIT ?3"),
                                 round_page.reader(), run, after, rounds_max));
  FL_CHECK(add_main_metrics(rounds, clients_min));
  for (RoundSummary& round : rounds)
    if (round.clients_accepted < clients_min) round.train_loss.reset();
  return rounds;
}

Result<std::vector<CodecAsked>> Store::codecs_asked_page(RunId run, Round after, int rounds_max) {
  return db_->query(
      codec_asked_table.select("WHERE codec_reason <> '' AND run_id = ?1 AND round > ?2"
                               " AND round <= ?2 + ?3 ORDER BY id"),
      codec_asked_table.reader(), run, after, rounds_max);
}

}  // namespace fl
