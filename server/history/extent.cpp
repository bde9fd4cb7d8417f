// SPDX-License-Identifier: Apache-2.0
#include "server/history/extent.hpp"

#include "server/history/own_schema.hpp"
#include "server/history/schema.hpp"
#include "server/history/store.hpp"

#include <utility>

namespace fl::server {

namespace {

Result<std::optional<std::int64_t>> newest_of(Database& db, std::string_view sql) {
  const auto read = [](const Row& row) {
    return row.is_null(0) ? std::optional<std::int64_t>() : std::optional(row.integer(0));
  };
  FL_TRY(const auto found, db.find(sql, read));
  return found.value_or(std::nullopt);
}

Result<HistoryExtent> read_rows(Database& db) {
  HistoryExtent extent;
  FL_TRY(const auto run, newest_of(db, "SELECT max(id) FROM run"));
  extent.newest_run = run.value_or(0);
  const auto read = [](const Row& row) {
    const auto version = row.is_null(1) ? std::optional<Version>()
                                        : std::optional(static_cast<Version>(row.integer(1)));
    return std::pair(RunId{row.integer(0)}, version);
  };
  FL_TRY(const auto versions,
         db.query("SELECT id, (SELECT max(version) FROM checkpoint WHERE run_id = run.id) FROM run",
                  read));
  extent.newest_versions.insert(versions.begin(), versions.end());
  FL_TRY(const auto task,
         newest_of(db, "SELECT max(id) FROM task WHERE run_id = (SELECT max(id) FROM run)"));
  if (task) extent.newest_task = TaskId{*task};
  // The audit is younger than the first schema.
  FL_TRY(const auto has_audit, newest_of(db,
                                         "SELECT max(1) FROM sqlite_schema"
                                         " WHERE type = 'table' AND name = 'audit'"));
  if (!has_audit) return extent;
  FL_TRY(const auto audit, newest_of(db, "SELECT max(id) FROM audit"));
  extent.newest_audit = audit.value_or(0);
  return extent;
}

Result<HistoryExtent> read_file(const std::filesystem::path& history, bool is_unchanging) {
  Database::Options options;
  options.path = history;
  options.read_only = true;
  options.is_unchanging = is_unchanging;
  options.busy_ms_max = static_cast<int>(Store::busy_max.count());
  FL_TRY(const auto db, Database::open(options));
  FL_TRY(const int version, check_schema(*db, static_cast<int>(history_migrations().size())));
  if (version == 0) return HistoryExtent();
  FL_CHECK(check_own_schema(*db));
  return db->read([&] { return read_rows(*db); });
}

}  // namespace

Result<HistoryExtent> read_extent(const std::filesystem::path& history) {
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(history, missing);
  if (missing == std::errc::no_such_file_or_directory || (!missing && bytes == 0))
    return HistoryExtent();
  // Where there is no WAL nobody has the history open, and all is in its file. To read it as one
  // that may change would make an empty WAL, which looks like the one that is missing. Somebody may
  // open it just now: what then fails is tried once more.
  const bool has_wal = std::filesystem::exists(history.string() + "-wal", missing);
  auto extent = read_file(history, !has_wal);
  if (!extent && !has_wal && extent.error().code() != Errc::conflict)
    extent = read_file(history, false);
  if (!extent) return extent.error().at("history " + history.string());
  return extent;
}

}  // namespace fl::server
