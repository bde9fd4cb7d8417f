// SPDX-License-Identifier: Apache-2.0
// The history of all runs in one SQLite database, STATE/history.sqlite. It also has everything that
// a restart needs: which run, which round, who was asked, whose update is safe. Large blobs
// (checkpoints, spooled updates) lie in files beside it; a row names a file only after the file is
// durable. The Store opens the database and hands out its parts, which have the functions.
//
// The rules of all parts: every call blocks on the disk. While a server runs, calls come through
// StoreThread, one at a time. A call is one transaction: when it returns without an error, what it
// wrote is durable (WAL, synchronous=FULL); a call that returns an error has changed nothing.
//
// Errors of the disk: no_space; unavailable, where another program holds the database for longer
// than busy_max (pause and try again: will_pass()); corrupt; io. After io or corrupt the server
// stops. Nothing is retried: all parts answer every later call with that same error (sqlite.hpp).
// Errors of the caller: not_found (an unknown run, round, task, token or name), conflict (decided,
// closed, used or taken already), invalid_input (a value that the schema does not allow).
#pragma once

#include "server/history/archive.hpp"
#include "server/history/audit.hpp"
#include "server/history/events.hpp"
#include "server/history/masked_messages.hpp"
#include "server/history/measurements.hpp"
#include "server/history/members.hpp"
#include "server/history/operators.hpp"
#include "server/history/pages.hpp"
#include "server/history/rounds.hpp"
#include "server/history/runs.hpp"
#include "server/history/summaries.hpp"
#include "shared/base/error.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

struct sqlite3;

namespace fl::server {

class Database;

class Store {
 public:
  struct Options {
    std::filesystem::path path;  // The database file.
    std::string vfs = "";        // "" for SQLite's own; a test's VFS otherwise.
    bool exclusive = false;      // One process, no shared memory (needed by a VFS without it).
    bool read_only = false;      // For history and clients, beside a running server.
    bool migrates = true;        // False: an older server may be using the history.
    bool durable = true;         // False: a crash of the system may lose the last writes (fl-sim).
  };

  /// The longest wait of a call for another process (`fl-server enroll` beside a running server).
  static constexpr std::chrono::milliseconds busy_max{5000};

  /// Opens the file, and migrates it to the newest schema. A file that is not a database is
  /// `corrupt`; a database of another program, or one with a newer schema, or with tables or views
  /// that are not ours, is `conflict`. They are left as they were. read_only: a missing file is
  /// `not_found`. read_only, or without `migrates`: an older schema is `conflict`.
  static Result<std::unique_ptr<Store>> open(const Options& options);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  [[nodiscard]] Runs& runs() { return runs_; }
  [[nodiscard]] Rounds& rounds() { return rounds_; }
  [[nodiscard]] MaskedMessages& masked_messages() { return masked_messages_; }
  [[nodiscard]] Measurements& measurements() { return measurements_; }
  [[nodiscard]] Members& members() { return members_; }
  [[nodiscard]] Operators& operators() { return operators_; }
  [[nodiscard]] Audit& audit() { return audit_; }
  [[nodiscard]] Events& events() { return events_; }
  [[nodiscard]] Summaries& summaries() { return summaries_; }
  [[nodiscard]] Pages& pages() { return pages_; }
  [[nodiscard]] Archive& archive() { return archive_; }

  /// Changes when another process has committed to the database (PRAGMA data_version).
  [[nodiscard]] Result<std::int64_t> data_version();
  [[nodiscard]] sqlite3* raw();  // For tests.

 private:
  explicit Store(std::unique_ptr<Database> db);

  std::unique_ptr<Database> db_;
  Runs runs_;
  Rounds rounds_;
  MaskedMessages masked_messages_;
  Measurements measurements_;
  Audit audit_;
  Events events_;
  Members members_;
  Operators operators_;
  Summaries summaries_;
  Pages pages_;
  Archive archive_;
};

}  // namespace fl::server
