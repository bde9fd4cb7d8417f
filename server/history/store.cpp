// SPDX-License-Identifier: Apache-2.0
#include "server/history/store.hpp"

#include "server/history/own_schema.hpp"
#include "server/history/schema.hpp"
#include "server/history/sqlite.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace fl::server {

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
  if (db || db.error().code() != Errc::io) return db;  // Nothing can be written there, perhaps.
  std::error_code none;
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

}  // namespace

Store::Store(std::unique_ptr<Database> db)
    : db_(std::move(db)),
      runs_(*db_),
      rounds_(*db_),
      masked_messages_(*db_),
      measurements_(*db_),
      audit_(*db_),
      events_(*db_),
      members_(*db_, audit_),
      operators_(*db_, audit_),
      summaries_(*db_),
      pages_(*db_, summaries_),
      archive_(*db_, runs_) {}
Store::~Store() = default;

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

Result<std::int64_t> Store::data_version() {
  FL_TRY(const auto version,
         db_->find("PRAGMA data_version", [](const Row& row) { return row.integer(0); }));
  return *version;
}

sqlite3* Store::raw() { return db_->raw(); }

}  // namespace fl::server
