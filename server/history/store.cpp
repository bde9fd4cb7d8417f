// Opening, runs, events, and the summary; store_rounds.cpp and store_clients.cpp have the rest.
#include "server/history/store.hpp"

#include "server/history/rows.hpp"
#include "server/history/schema.hpp"
#include "server/history/sqlite.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <chrono>
#include <thread>

namespace fl {

namespace {

constexpr std::array<std::string_view, 4> run_states{"waiting", "running", "finished", "stopped"};
constexpr std::array<std::string_view, 5> task_states{"offered", "accepted", "refused", "late",
                                                      "lost"};

template <class State, std::size_t count>
Result<State> state_of(std::string_view text, const std::array<std::string_view, count>& names) {
  for (std::size_t i = 0; i < count; ++i) {
    if (names[i] == text) return static_cast<State>(i);
  }
  return Error(Errc::corrupt, fmt::format("unknown state '{}'", text));
}

/// The journal's mode afterwards. Switching a new file to WAL needs it for ourselves, and SQLite
/// doesn't wait for that as it waits for a transaction: fl-server may start beside `enroll`.
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

/// Everything up to the schema. Nothing is written before the file is known to be ours.
Result<void> prepare(Database& db, const Store::Options& options) {
  if (options.exclusive) FL_CHECK(db.script("PRAGMA locking_mode = EXCLUSIVE"));
  FL_CHECK(db.script(options.durable ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = OFF"));
  FL_CHECK(
      db.script("PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY;"
                "PRAGMA cell_size_check = ON"));
  const int newest = static_cast<int>(history_migrations().size());
  FL_TRY(const int version, check_schema(db, newest));
  if (options.read_only) {
    if (version == newest) return {};
    return Error(Errc::conflict,
                 fmt::format("its schema is version {}, this program's is {}; start "
                             "fl-server once to bring it up",
                             version, newest));
  }
  FL_TRY(const auto mode, use_wal(db));
  if (mode != "wal") return Error(Errc::io, "its file system doesn't let SQLite use a WAL");
  // After a burst (a long reader beside us) the WAL file shrinks back to this.
  FL_CHECK(db.script("PRAGMA journal_size_limit = 16777216"));
  FL_CHECK(migrate(db, history_migrations()));
  // If the last server was killed after a failed sync, the WAL we have read may have pages that are
  // in the kernel's cache but will never reach the disk, and all that is appended behind them would
  // be lost with them. Copied into the database file and synced there they are safe, once a commit
  // (of nothing) has begun the WAL anew: a power loss could bring the old one back.
  FL_CHECK(db.script("PRAGMA wal_checkpoint(TRUNCATE)"));
  return db.write([&] { return db.script(fmt::format("PRAGMA user_version = {}", newest)); });
}

constexpr std::string_view select_runs =
    "SELECT id, key, model, seed, rounds_total, config_json, state, started_at, queued, checkpoints"
    " FROM run";

Result<RunRecord> read_run(const Row& row) {
  RunRecord run;
  run.id = row.integer(0);
  run.key = row.text(1);
  run.model = row.text(2);
  const std::string seed = row.text(3);
  const auto parsed = std::from_chars(seed.data(), seed.data() + seed.size(), run.seed);
  if (parsed.ec != std::errc() || parsed.ptr != seed.data() + seed.size()) {
    return Error(Errc::corrupt, fmt::format("run {}: the seed '{}' is no number", run.id, seed));
  }
  run.rounds_total = static_cast<Round>(row.integer(4));
  run.config_json = row.text(5);
  FL_TRY(run.state, run_state_of(row.text(6)));
  run.started_at = row.real(7);
  run.queued = row.integer(8) != 0;
  run.checkpoints = row.text(9);
  return run;
}

RoundSummary read_summary(const Row& row) {
  RoundSummary summary;
  summary.run = row.integer(0);
  summary.round = static_cast<Round>(row.integer(1));
  summary.started_at = row.real(2);
  summary.seconds = row.real(3);
  summary.clients_offered = static_cast<std::uint32_t>(row.integer(4));
  summary.clients_accepted = static_cast<std::uint32_t>(row.integer(5));
  summary.bytes_up = unsigned_of(row, 6);
  summary.bytes_down = unsigned_of(row, 7);
  summary.train_loss = row.optional_real(8);
  summary.eval_loss = row.optional_real(9);
  summary.eval_accuracy = row.optional_real(10);
  summary.model_digest = row.text(11);
  summary.own_accuracy = row.optional_real(12);
  return summary;
}

CodecSummary read_codec_summary(const Row& row) {
  CodecSummary summary;
  summary.run = row.integer(0);
  summary.codec = row.text(1);
  summary.updates = unsigned_of(row, 2);
  summary.raw_bytes = unsigned_of(row, 3);
  summary.update_bytes = unsigned_of(row, 4);
  summary.encode_seconds = row.real(5);
  summary.decode_seconds = row.real(6);
  summary.train_seconds = row.real(7);
  summary.nmse = row.real(8);
  summary.bytes = unsigned_of(row, 9);
  summary.accuracy_first = row.optional_real(10);
  summary.accuracy_last = row.optional_real(11);
  return summary;
}

Result<CodecAsked> read_codec_asked(const Row& row) {
  CodecAsked asked;
  asked.run = row.integer(0);
  asked.round = static_cast<Round>(row.integer(1));
  asked.client = row.text(2);
  asked.codec = row.text(3);
  asked.reason = row.text(4);
  FL_TRY(asked.state, task_state_of(row.text(5)));
  asked.update_bytes = unsigned_of(row, 6);
  asked.ready_seconds = row.real(7);
  asked.upload_seconds = row.real(8);
  return asked;
}

Error no_such_run(RunId run) { return {Errc::not_found, fmt::format("there is no run {}", run)}; }

}  // namespace

std::string_view to_text(RunState state) { return run_states[static_cast<std::size_t>(state)]; }
std::string_view to_text(TaskState state) { return task_states[static_cast<std::size_t>(state)]; }
Result<RunState> run_state_of(std::string_view text) {
  return state_of<RunState>(text, run_states);
}
Result<TaskState> task_state_of(std::string_view text) {
  return state_of<TaskState>(text, task_states);
}

Result<Digest> digest_of(const Row& row, int column) {
  if (row.is_null(column)) return Digest();
  auto digest = Digest::parse_hex(row.text(column));
  if (!digest) return Error(Errc::corrupt, "'" + row.text(column) + "' is no digest");
  return digest;
}

std::optional<std::string> column_of(const Digest& digest) {
  return digest.is_zero() ? std::nullopt : std::optional(digest.hex());
}

Store::Store(std::unique_ptr<Database> db) : db_(std::move(db)) {}
Store::~Store() = default;

sqlite3* Store::raw() { return db_->raw(); }

Result<std::unique_ptr<Store>> Store::open(const Options& options) {
  Database::Options connection;
  connection.path = options.path;
  connection.vfs = options.vfs;
  connection.read_only = options.read_only;
  connection.busy_ms_max = static_cast<int>(busy_max.count());
  FL_TRY(auto db, Database::open(connection));
  if (const auto ready = prepare(*db, options); !ready) {
    return ready.error().at("history " + options.path.string());
  }
  return std::unique_ptr<Store>(new Store(std::move(db)));
}

Result<RunRecord> Store::create_run(const RunRecord& run, Others others) {
  return db_->write([&]() -> Result<RunRecord> {
    if (others == Others::stop)
      FL_CHECK(db_->run("UPDATE run SET state = 'stopped' WHERE state IN ('waiting', 'running')"));
    FL_CHECK(
        db_->run("INSERT INTO run (key, model, seed, rounds_total, config_json, state, started_at,"
                 " queued) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                 run.key, run.model, std::to_string(run.seed), run.rounds_total, run.config_json,
                 to_text(run.state), run.started_at, run.queued ? 1 : 0));
    RunRecord made = run;
    made.id = db_->last_id();
    // The first one's checkpoints lie in STATE/checkpoints itself.
    if (made.id > 1) made.checkpoints = fmt::format("run-{}", made.id);
    FL_CHECK(db_->run("UPDATE run SET checkpoints = ?2 WHERE id = ?1", made.id, made.checkpoints));
    return made;
  });
}

Result<std::optional<RunRecord>> Store::latest_run() {
  return db_->find(fmt::format("{} ORDER BY id DESC LIMIT 1", select_runs), read_run);
}

Result<std::optional<RunRecord>> Store::open_run() {
  return db_->find(
      fmt::format("{} WHERE state IN ('waiting', 'running') ORDER BY id LIMIT 1", select_runs),
      read_run);
}

Result<std::size_t> Store::open_runs() {
  FL_TRY(const auto count,
         db_->find("SELECT count(*) FROM run WHERE state IN ('waiting', 'running')",
                   [](const Row& row) { return static_cast<std::size_t>(row.integer(0)); }));
  return count.value();
}

Result<std::optional<RunRecord>> Store::shown_run() {
  return db_->find(
      fmt::format("{} ORDER BY state = 'running' DESC,"
                  " EXISTS (SELECT 1 FROM round WHERE run_id = run.id) DESC,"
                  " state = 'waiting' DESC, CASE state WHEN 'waiting' THEN -id ELSE id END DESC"
                  " LIMIT 1",
                  select_runs),
      read_run);
}

Result<std::vector<RunSummary>> Store::runs() {
  FL_TRY(const auto records, db_->query(fmt::format("{} ORDER BY id", select_runs), read_run));
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
  return db_->find(fmt::format("{} WHERE id = ?1", select_runs), read_run, run);
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
           db_->run("UPDATE run SET rounds_total = ?2, config_json = ?3, state = CASE"
                    "  WHEN state = 'finished' AND ?2 > (SELECT count(*) FROM round"
                    "    WHERE run_id = ?1 AND ended_at IS NOT NULL) THEN 'running'"
                    "  ELSE state END WHERE id = ?1",
                    run, rounds_total, config_json));
    if (changed == 0) return no_such_run(run);
    return {};
  });
}

Result<void> Store::add_event(RunId run, std::string_view level, std::string_view text) {
  return db_->write([&]() -> Result<void> {
    FL_TRY(const double now, db_->now());
    const auto owner = run == 0 ? std::nullopt : std::optional(run);
    FL_CHECK(db_->run("INSERT INTO event (run_id, at, level, text) VALUES (?1, ?2, ?3, ?4)", owner,
                      now, level, text));
    FL_CHECK(
        db_->run("DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?1", events_max));
    return {};
  });
}

void note_event(Store& store, RunId run, std::string_view level, std::string_view text) {
  if (auto written = store.add_event(run, level, text); !written)
    log_warn("not in the history: {}", written.error().message());
}

Result<std::int64_t> Store::data_version() {
  FL_TRY(const auto version,
         db_->find("PRAGMA data_version", [](const Row& row) { return row.integer(0); }));
  return *version;
}

Result<std::vector<RoundSummary>> Store::summary(std::optional<RunId> run) {
  return db_->query(
      "SELECT run_id, round, started_at, seconds, clients_offered, clients_accepted,"
      " bytes_up, bytes_down, train_loss, eval_loss, eval_accuracy, model_digest,"
      " (SELECT value FROM evaluation AS e WHERE e.run_id = s.run_id AND e.version = s.round"
      "   AND e.name = 'own_accuracy')"
      " FROM round_summary AS s WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, round",
      read_summary, run);
}

Result<std::vector<EventRecord>> Store::events(std::optional<RunId> run) {
  return db_->query(
      "SELECT coalesce(run_id, 0), at, level, text FROM event"
      " WHERE ?1 IS NULL OR run_id IS NULL OR run_id = ?1 ORDER BY id",
      [](const Row& row) {
        return EventRecord{row.integer(0), row.real(1), row.text(2), row.text(3)};
      },
      run);
}

Result<std::vector<CodecSummary>> Store::codecs(std::optional<RunId> run) {
  return db_->query(
      "SELECT run_id, codec, updates, raw_bytes, update_bytes, encode_seconds, decode_seconds,"
      " train_seconds, nmse, bytes, accuracy_first, accuracy_last"
      " FROM codec_summary WHERE ?1 IS NULL OR run_id = ?1 ORDER BY run_id, codec",
      read_codec_summary, run);
}

Result<std::vector<CodecAsked>> Store::codecs_asked(std::optional<RunId> run) {
  return db_->query(
      "SELECT run_id, round, client, codec, codec_reason, state, update_bytes, ready_seconds,"
      " upload_seconds FROM task WHERE codec_reason <> '' AND (?1 IS NULL OR run_id = ?1)"
      " ORDER BY id",
      read_codec_asked, run);
}

}  // namespace fl
