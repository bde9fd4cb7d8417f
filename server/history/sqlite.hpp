// SPDX-License-Identifier: Apache-2.0
// One SQLite connection: prepared statements that are kept, typed binding and reading,
// transactions, and SQLite's result codes as our errors. Only the store uses it.
//
// One thread at a time. Errors: SQLITE_FULL is no_space, and so is every IOERR behind which a disk,
// a quota or a limit of a file's size had no room (sqlite_system_calls.hpp); CORRUPT and NOTADB are
// corrupt; BUSY and LOCKED are unavailable; IOERR and its kin are io; a broken UNIQUE or primary
// key is conflict; a missing parent row is not_found; any other broken constraint is invalid_input.
// After io or corrupt nobody knows what the disk holds: every later call returns that same error.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/failpoint.hpp"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace fl::server {

/// A value for a parameter of a statement; monostate is NULL. NaN becomes NULL too.
using SqlValue = std::variant<std::monostate, std::int64_t, std::uint64_t, double, std::string>;

/// The current row of a statement. Columns count from 0, in the order of the SELECT.
class Row {
 public:
  explicit Row(sqlite3_stmt* statement) : statement_(statement) {}

  [[nodiscard]] bool is_null(int column) const;
  [[nodiscard]] std::string text(int column) const;      // NULL: "".
  [[nodiscard]] std::int64_t integer(int column) const;  // NULL: 0.
  [[nodiscard]] double real(int column) const;           // NULL: NaN, which is how NaN is stored.
  [[nodiscard]] std::optional<double> optional_real(int column) const;

 private:
  sqlite3_stmt* statement_;
};

/// The type that a reader of rows makes: T, whether it returns T or Result<T>.
template <class Made>
struct ReadAs {
  using type = Made;
};
template <class T>
struct ReadAs<Result<T>> {
  using type = T;
};
template <class Read>
using ReadBy = typename ReadAs<std::invoke_result_t<Read, const Row&>>::type;

class Database {
 public:
  struct Options {
    std::filesystem::path path;
    std::string vfs = "";        // "": SQLite's own.
    bool read_only = false;      // The file must exist.
    bool is_unchanging = false;  // Nobody writes to it: no lock is taken, and no WAL is read.
    int busy_ms_max = 0;         // The wait for another process's transaction.
  };

  static Result<std::unique_ptr<Database>> open(const Options& options);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// Runs several statements without parameters, for set-up and migrations. They are not kept.
  [[nodiscard]] Result<void> script(const std::string& sql);

  /// Runs one statement that returns no rows, and returns how many rows it changed. Arguments are
  /// bound to ?1, ?2, …: integers, double (NaN: NULL), text, std::optional of these (nullopt:
  /// NULL).
  template <class... Args>
  [[nodiscard]] Result<int> run(std::string_view sql, const Args&... args) {
    FL_TRY(const Use use, start(sql, args...));
    FL_TRY(const bool row, step(use.get()));
    FL_ASSERT(!row);
    return rows_changed();
  }

  /// run() with values whose number and types are known at run time only.
  [[nodiscard]] Result<int> run_with(std::string_view sql, std::span<const SqlValue> values);

  /// Runs one statement and returns its rows. `reader(const Row&)` makes a value of each row, or a
  /// Result of one.
  template <class Read, class... Args>
  [[nodiscard]] auto query(std::string_view sql, Read reader, const Args&... args)
      -> Result<std::vector<ReadBy<Read>>> {
    FL_TRY(const Use use, start(sql, args...));
    std::vector<ReadBy<Read>> rows;
    for (;;) {
      FL_TRY(const bool row, step(use.get()));
      if (!row) return rows;
      const Result<ReadBy<Read>> made = reader(Row(use.get()));
      if (!made) return made.error().at(path_);
      rows.push_back(*made);
    }
  }

  /// query() for at most one row.
  template <class Read, class... Args>
  [[nodiscard]] auto find(std::string_view sql, Read reader, const Args&... args)
      -> Result<std::optional<ReadBy<Read>>> {
    FL_TRY(auto rows, query(sql, reader, args...));
    FL_ASSERT(rows.size() <= 1);
    std::optional<ReadBy<Read>> found;
    if (!rows.empty()) found = std::move(rows.front());
    return found;
  }

  /// Runs `body`, which returns a Result, in a transaction. If it returns a value, all that it
  /// wrote is durable; if it returns an error, nothing is written.
  template <class Body>
  [[nodiscard]] auto write(Body body) -> std::invoke_result_t<Body> {
    return transaction("BEGIN IMMEDIATE", std::move(body));
  }
  /// Runs `body` in a transaction that only reads: its queries see one state of the database.
  template <class Body>
  [[nodiscard]] auto read(Body body) -> std::invoke_result_t<Body> {
    return transaction("BEGIN", std::move(body));
  }

  [[nodiscard]] std::int64_t last_id() const;
  /// Unix seconds, by the clock of the connection's VFS: simulated time in tests.
  [[nodiscard]] Result<double> now();
  [[nodiscard]] sqlite3* raw() { return db_; }

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const noexcept;
  };
  /// Resets a kept statement after its run, and forgets its arguments.
  struct Reset {
    void operator()(sqlite3_stmt* statement) const noexcept;
  };
  using Use = std::unique_ptr<sqlite3_stmt, Reset>;

  Database(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}

  Result<sqlite3_stmt*> prepared(std::string_view sql);
  Result<bool> step(sqlite3_stmt* statement);  // True: there is a row.
  [[nodiscard]] int rows_changed() const;
  Error failure();  // The error of the connection's last call.
  void rollback();

  Result<void> bind(sqlite3_stmt* statement, int index, std::int64_t value);
  Result<void> bind(sqlite3_stmt* statement, int index, std::uint64_t value);
  Result<void> bind(sqlite3_stmt* statement, int index, double value);
  Result<void> bind(sqlite3_stmt* statement, int index, std::string_view value);
  Result<void> bind(sqlite3_stmt* statement, int index, std::nullopt_t);
  Result<void> bind_value(sqlite3_stmt* statement, int index, const SqlValue& value);
  Result<void> bind(sqlite3_stmt* statement, int index, int value) {
    return bind(statement, index, std::int64_t{value});
  }
  Result<void> bind(sqlite3_stmt* statement, int index, std::uint32_t value) {
    return bind(statement, index, std::int64_t{value});
  }
  Result<void> bind(sqlite3_stmt* statement, int index, const std::string& value) {
    return bind(statement, index, std::string_view(value));
  }
  template <class T>
  Result<void> bind(sqlite3_stmt* statement, int index, const std::optional<T>& value) {
    return value ? bind(statement, index, *value) : bind(statement, index, std::nullopt);
  }

  template <class... Args>
  Result<Use> start(std::string_view sql, const Args&... args) {
    FL_TRY(sqlite3_stmt* const statement, prepared(sql));
    Use use(statement);
    int index = 0;
    Result<void> bound;
    // Stops at the first argument that can't be bound.
    (void)((bound = bind(statement, ++index, args)).has_value() && ...);
    if (!bound) return bound.error();
    return use;
  }

  template <class Body>
  auto transaction(std::string_view begin, Body body) -> std::invoke_result_t<Body> {
    FL_CHECK(run(begin));
    auto result = body();
    if (result) {
      failpoint("disk.step");
      auto committed = run("COMMIT");
      failpoint("disk.step");
      if (committed) return result;
      result = committed.error();
    }
    rollback();
    return result;
  }

  sqlite3* db_;
  std::string path_;  // For error messages.
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Finalize>, std::less<>> statements_;
  std::optional<Error> broken_;  // The io or corrupt error that ended this connection's use.
};

}  // namespace fl::server
