// SPDX-License-Identifier: Apache-2.0
#include "server/history/sqlite.hpp"

#include "server/history/sqlite_system_calls.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include <sqlite3.h>

namespace fl::server {

bool Row::is_null(int column) const {
  return sqlite3_column_type(statement_, column) == SQLITE_NULL;
}

std::string Row::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  if (bytes == nullptr) return {};
  return {bytes, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

std::int64_t Row::integer(int column) const { return sqlite3_column_int64(statement_, column); }

double Row::real(int column) const {
  return is_null(column) ? std::numeric_limits<double>::quiet_NaN()
                         : sqlite3_column_double(statement_, column);
}

std::optional<double> Row::optional_real(int column) const {
  return is_null(column) ? std::nullopt : std::optional(sqlite3_column_double(statement_, column));
}

void Database::Finalize::operator()(sqlite3_stmt* statement) const noexcept {
  sqlite3_finalize(statement);
}

void Database::Reset::operator()(sqlite3_stmt* statement) const noexcept {
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
}

namespace {

Errc category(int code, int system_errno) {
  if (is_no_space(system_errno)) return Errc::no_space;
  switch (code) {
    case SQLITE_CONSTRAINT_FOREIGNKEY: return Errc::not_found;
    case SQLITE_CONSTRAINT_PRIMARYKEY:
    case SQLITE_CONSTRAINT_ROWID:
    case SQLITE_CONSTRAINT_UNIQUE: return Errc::conflict;
  }
  switch (code & 0xff) {  // The primary code; the rest is detail.
    case SQLITE_FULL: return Errc::no_space;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Errc::corrupt;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return Errc::unavailable;
    case SQLITE_CANTOPEN: return system_errno == ENOENT ? Errc::not_found : Errc::io;
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_PERM: return Errc::io;
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH: return Errc::invalid_input;
    case SQLITE_TOOBIG: return Errc::too_large;
    default: return Errc::internal;
  }
}

/// The end of the error's text: what the operator can do about it.
const char* advice(Errc code) {
  switch (code) {
    case Errc::corrupt:
      return "; nothing was changed. Restore the file from a copy (sqlite3's .recover may save its "
             "rows), or begin in another --state, where all clients join again";
    case Errc::no_space: return "; make room on the disk, or raise the quota";
    case Errc::io: return "; check the disk and the permissions, then start again";
    default: return "";
  }
}

/// The errno behind the last error, or 0.
int errno_of(sqlite3* db, int code) {
  const int primary = code & 0xff;
  if (primary != SQLITE_IOERR && primary != SQLITE_CANTOPEN) return 0;
  // SQLite keeps the errno of the last call, which may be another one than the one that failed, or
  // of an earlier failure. So where there was no room, our own note says so.
  const int noted = take_sqlite_errno();
  const bool makes_or_grows = code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_TRUNCATE ||
                              code == SQLITE_IOERR_SHMSIZE || primary == SQLITE_CANTOPEN;
  return makes_or_grows && is_no_space(noted) ? noted : sqlite3_system_errno(db);
}

Error error_of(sqlite3* db, const std::string& path) {
  const int code = sqlite3_extended_errcode(db);
  const int number = errno_of(db, code);
  Errc errc = category(code, number);
  // SQLite reports its own files beside the database as missing where they can't be made.
  std::error_code none;
  if (errc == Errc::not_found && number == ENOENT && std::filesystem::exists(path, none))
    errc = Errc::io;
  const std::string why = is_no_space(number) ? std::string(": ") + std::strerror(number) : "";
  return {errc, fmt::format("{}: {} (SQLite {}{}){}{}", path, sqlite3_errmsg(db), code, why,
                            advice(errc), file_limit_text(number))};
}

std::string unchanging_uri(const std::filesystem::path& path) {
  std::string uri = "file:";
  for (const char c : path.string()) {
    const bool is_special = c == '%' || c == '?' || c == '#';
    uri += is_special ? fmt::format("%{:02x}", static_cast<int>(c)) : std::string(1, c);
  }
  return uri + "?immutable=1";
}

}  // namespace

Result<std::unique_ptr<Database>> Database::open(const Options& options) {
  const int mode =
      options.read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const char* vfs = options.vfs.empty() ? nullptr : options.vfs.c_str();
  const std::string name =
      options.is_unchanging ? unchanging_uri(options.path) : options.path.string();
  const int flags = mode | SQLITE_OPEN_EXRESCODE | (options.is_unchanging ? SQLITE_OPEN_URI : 0);
  watch_sqlite_system_calls();
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(name.c_str(), &db, flags, vfs);
  if (db == nullptr) return Error(Errc::internal, options.path.string() + ": out of memory");
  std::unique_ptr<Database> database(new Database(db, options.path.string()));
  if (code != SQLITE_OK) return database->failure();
  sqlite3_busy_timeout(db, options.busy_ms_max);
  // The file may be somebody else's. Our own schema needs JSON functions, which older versions of
  // SQLite do not let an untrusted one call; so it is trusted, and compared (own_schema.hpp).
  sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  return database;
}

Database::~Database() {
  statements_.clear();
  // With every statement finalized, SQLite can't refuse to close. It moves what it can from the WAL
  // into the database file; the next open finds the rest in the WAL.
  FL_ASSERT(sqlite3_close(db_) == SQLITE_OK);
}

Result<void> Database::script(const std::string& sql) {
  if (broken_) return *broken_;
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) return failure();
  return {};
}

std::int64_t Database::last_id() const { return sqlite3_last_insert_rowid(db_); }

Result<double> Database::now() {
  FL_TRY(const auto seconds, find("SELECT (julianday('now') - 2440587.5) * 86400.0",
                                  [](const Row& row) { return row.real(0); }));
  return *seconds;
}

Result<sqlite3_stmt*> Database::prepared(std::string_view sql) {
  if (broken_) return *broken_;
  if (const auto kept = statements_.find(sql); kept != statements_.end()) return kept->second.get();
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_, sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return failure();
  statements_.emplace(sql, statement);
  return statement;
}

Result<int> Database::run_with(std::string_view sql, std::span<const SqlValue> values) {
  FL_TRY(sqlite3_stmt* const statement, prepared(sql));
  const Use use(statement);
  int index = 0;
  for (const SqlValue& value : values) FL_CHECK(bind_value(statement, ++index, value));
  FL_TRY(const bool row, step(statement));
  FL_ASSERT(!row);
  return rows_changed();
}

Result<bool> Database::step(sqlite3_stmt* statement) {
  const int code = sqlite3_step(statement);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return failure();
}

int Database::rows_changed() const { return sqlite3_changes(db_); }

Error Database::failure() {
  Error error = error_of(db_, path_);
  if (error.code() == Errc::io || error.code() == Errc::corrupt) broken_ = error;
  return error;
}

void Database::rollback() {
  // After some failures (a full disk, for one) SQLite has rolled back by itself.
  if (sqlite3_get_autocommit(db_) != 0) return;
  // Not by run(), as the connection may be marked broken. A failure here needs no action: the
  // transaction was never committed, and closing the connection drops it.
  sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
}

Result<void> Database::bind(sqlite3_stmt* statement, int index, std::int64_t value) {
  if (sqlite3_bind_int64(statement, index, value) != SQLITE_OK) return failure();
  return {};
}

Result<void> Database::bind(sqlite3_stmt* statement, int index, std::uint64_t value) {
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return Error(Errc::invalid_input,
                 path_ + ": " + std::to_string(value) + " is more than the database can hold");
  }
  return bind(statement, index, static_cast<std::int64_t>(value));
}

Result<void> Database::bind(sqlite3_stmt* statement, int index, double value) {
  // SQLite itself turns NaN into NULL.
  if (sqlite3_bind_double(statement, index, value) != SQLITE_OK) return failure();
  return {};
}

Result<void> Database::bind(sqlite3_stmt* statement, int index, std::string_view value) {
  // The caller's text outlives the step; a null pointer would be NULL, so "" needs an address.
  const char* data = value.empty() ? "" : value.data();
  if (sqlite3_bind_text64(statement, index, data, value.size(), SQLITE_STATIC, SQLITE_UTF8) !=
      SQLITE_OK) {
    return failure();
  }
  return {};
}

Result<void> Database::bind(sqlite3_stmt* statement, int index, std::nullopt_t) {
  if (sqlite3_bind_null(statement, index) != SQLITE_OK) return failure();
  return {};
}

Result<void> Database::bind_value(sqlite3_stmt* statement, int index, const SqlValue& value) {
  const auto put = [&](const auto& held) {
    if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>)
      return bind(statement, index, std::nullopt);
    else
      return bind(statement, index, held);
  };
  return std::visit(put, value);
}

}  // namespace fl::server
