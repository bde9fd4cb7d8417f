// SPDX-License-Identifier: Apache-2.0
// The store with files that are foreign, damaged, of a newer version, or shared with other
// processes, on the real disk.
#include "server/history/schema.hpp"
#include "server/history/store.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/write_signals.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fstream>

namespace fl::test {

using namespace fl::server;
namespace {

namespace fs = std::filesystem;

Store::Options options(const fs::path& path, bool read_only = false) {
  Store::Options made;
  made.path = path;
  made.read_only = read_only;
  return made;
}

struct Folder {
  TemporaryFolder folder;
  fs::path file = folder / "history.sqlite";

  [[nodiscard]] Result<std::unique_ptr<Store>> open() const { return Store::open(options(file)); }
  [[nodiscard]] Result<std::unique_ptr<Store>> open_to_read() const {
    return Store::open(options(file, true));
  }
  [[nodiscard]] std::string bytes() const { return posix_files().read_all(file).value(); }
};

void exec(sqlite3* db, const char* sql) {
  REQUIRE(sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
}

/// A database made without the store.
void make_database(const fs::path& path, const char* sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  exec(db, sql);
  sqlite3_close(db);
}

/// Checks that opening fails with this error, names the file, and leaves it as it was.
void check_refused(const Folder& folder, Errc code, const char* says) {
  const std::string before = folder.bytes();
  for (const auto& opened : {folder.open(), folder.open_to_read()}) {
    REQUIRE(!opened);
    CHECK(opened.error().code() == code);
    CHECK(opened.error().message().find(folder.file.string()) != std::string::npos);
    CHECK(opened.error().message().find(says) != std::string::npos);
  }
  CHECK(folder.bytes() == before);
}

Result<int> user_version(Database& db) {
  FL_TRY(const auto version, db.find("PRAGMA user_version", [](const Row& row) {
    return static_cast<int>(row.integer(0));
  }));
  return *version;
}

}  // namespace

TEST_CASE("a file that is not a database is refused and left alone") {
  const Folder folder;
  std::ofstream(folder.file) << std::string(5000, 'x');
  check_refused(folder, Errc::corrupt, "not a database");
}

TEST_CASE("another program's database is refused and left alone") {
  const Folder folder;
  make_database(folder.file, "CREATE TABLE bookmarks (url TEXT)");
  check_refused(folder, Errc::conflict, "another program");
}

TEST_CASE("another program's application_id is refused even without tables") {
  const Folder folder;
  make_database(folder.file, "PRAGMA application_id = 7");
  check_refused(folder, Errc::conflict, "another program");
}

TEST_CASE("a newer schema is refused and left alone") {
  const Folder folder;
  REQUIRE(folder.open());
  make_database(folder.file, "PRAGMA journal_mode = DELETE; PRAGMA user_version = 99");
  check_refused(folder, Errc::conflict, "version 99");
}

TEST_CASE("a history whose tables or views somebody else has made is refused and left alone") {
  const char* const changes[] = {
      // It has no end, and every command would hang.
      ("DROP VIEW round_summary; CREATE VIEW round_summary (run_id, round) AS"
       " WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i FROM n"),
      "DROP VIEW evaluation; CREATE VIEW evaluation AS SELECT 1 AS run_id",
      "DROP VIEW run_metric; CREATE TABLE run_metric (run_id, name)",
      "DROP VIEW evaluation",
      "ALTER TABLE event ADD COLUMN long TEXT AS (printf('%1000000d', id))",
      "CREATE TRIGGER mine AFTER INSERT ON event BEGIN DELETE FROM task; END",
      "CREATE TRIGGER mine INSTEAD OF INSERT ON Evaluation BEGIN DELETE FROM task; END",
      "DROP INDEX task_counts_once",
      "DROP TRIGGER audit_is_kept",
      "PRAGMA user_version = -1"};
  for (const char* const change : changes) {
    CAPTURE(change);
    const Folder folder;
    REQUIRE(folder.open());
    make_database(folder.file, fmt::format("PRAGMA journal_mode = DELETE; {}", change).c_str());
    check_refused(folder, Errc::conflict, "its ");
  }
}

TEST_CASE("tables and views by other names, and other comments and spaces, are no change") {
  const Folder folder;
  REQUIRE(folder.open());
  const std::string view = "DROP VIEW site_summary; " + std::string(R"sql(CREATE VIEW
    site_summary (run_id, round, client, ranks, train_seconds, compute_seconds, -- ours
                  exposed_seconds, hidden_seconds, coding_seconds, overlap, fp32_steps,
                  setup) AS
      SELECT run_id, round, client, ranks, train_seconds, compute_seconds, exposed_seconds,
      hidden_seconds,   coding_seconds, /* as
      before */ hidden_seconds / nullif(hidden_seconds + exposed_seconds, 0), fp32_steps,
      setup
  FROM task WHERE state = 'accepted' AND ranks > 0)sql");
  make_database(folder.file, view.c_str());
  make_database(folder.file,
                "CREATE TABLE note (text TEXT); CREATE INDEX by_time ON event (at);"
                "CREATE VIEW late_tasks AS SELECT * FROM task WHERE state = 'late';"
                "CREATE TRIGGER noted AFTER INSERT ON note BEGIN DELETE FROM note; END");
  CHECK(folder.open());
  CHECK(folder.open_to_read());
  // Inside of quotes every character counts.
  make_database(folder.file,
                "DROP TRIGGER audit_is_fixed; CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit "
                "BEGIN SELECT RAISE(ABORT, 'rows of  the audit are never changed'); END;");
  const auto refused = folder.open_to_read();
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::conflict);
}

TEST_CASE("damaged pages are corrupt, and the error says what to do") {
  const Folder folder;
  REQUIRE(folder.open());
  const auto file = posix_files().open(folder.file, OpenMode::update).value();
  const std::string garbage(file->size().value() - 4096, '\xee');
  REQUIRE(file->write_at(4096, bytes_of(garbage)));
  check_refused(folder, Errc::corrupt, "Restore the file");
}

TEST_CASE("an empty file becomes a history; a missing folder is not found") {
  const Folder folder;
  std::ofstream(folder.file).flush();
  CHECK(folder.open_to_read().error().code() == Errc::conflict);  // Nothing in it yet.
  REQUIRE(folder.open());
  CHECK(folder.open_to_read());
  const auto nowhere = Store::open(options(folder.folder / "no" / "history.sqlite"));
  REQUIRE(!nowhere);
  CHECK(nowhere.error().code() == Errc::not_found);
}

TEST_CASE("the history of a server that has ended can be read where nothing can be written") {
  const TemporaryFolder parent;
  const fs::path file = parent / "per%20cent #1?" / "history.sqlite";
  fs::create_directories(file.parent_path());
  {
    const auto store = Store::open(options(file)).value();
    store->runs().create(some_run()).value();
  }
  // On read-only media, too, SQLite can't make its file history.sqlite-shm.
  fs::create_symlink(file.string() + "-shm", file.string() + "-shm");
  const auto store = Store::open(options(file, true));
  REQUIRE(store);
  CHECK((*store)->runs().all().value().size() == 1);
  CHECK(!(*store)->runs().create(some_run("aaaaaaaaaaaaaaaa")));
  // The rows in a WAL would be missed.
  std::ofstream(file.string() + "-wal") << "some";
  const auto unclean = Store::open(options(file, true));
  REQUIRE(!unclean);
  CHECK(unclean.error().message().find("copy the folder") != std::string::npos);
}

TEST_CASE("opened read-only, a missing file is not created, and writing is refused") {
  const Folder folder;
  CHECK(folder.open_to_read().error().code() == Errc::not_found);
  CHECK(!fs::exists(folder.file));
  const auto server = folder.open().value();
  REQUIRE(server->members().touch("a", false));
  const auto reader = folder.open_to_read().value();
  CHECK(reader->members().all().value().size() == 1);
  CHECK(!reader->members().touch("b", false));
  REQUIRE(server->members().touch("c", false));
  CHECK(server->members().all().value().size() == 2);
}

TEST_CASE("the history is a WAL database with the documented settings") {
  const Folder folder;
  const auto store = folder.open().value();
  const auto pragma = [&](const char* sql) {
    sqlite3_stmt* statement = nullptr;
    REQUIRE(sqlite3_prepare_v2(store->raw(), sql, -1, &statement, nullptr) == SQLITE_OK);
    REQUIRE(sqlite3_step(statement) == SQLITE_ROW);
    std::string text = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
    sqlite3_finalize(statement);
    return text;
  };
  CHECK(pragma("PRAGMA journal_mode") == "wal");
  CHECK(pragma("PRAGMA synchronous") == "2");
  CHECK(pragma("PRAGMA foreign_keys") == "1");
  CHECK(pragma("PRAGMA busy_timeout") == "5000");
  CHECK(pragma("PRAGMA application_id") == std::to_string(history_application_id));
  CHECK(pragma("PRAGMA user_version") == std::to_string(history_migrations().size()));
  CHECK(pragma("PRAGMA integrity_check") == "ok");
  CHECK(
      pragma(
          "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%STRICT%'") ==
      "0");
}

TEST_CASE("another process's commit changes data_version; our own doesn't") {
  const Folder folder;
  const auto server = folder.open().value();
  const auto tool = folder.open().value();
  const auto before = server->data_version().value();
  REQUIRE(server->members().touch("a", false));
  CHECK(server->data_version().value() == before);
  REQUIRE(tool->members().add_token(some_token("t1", "a")));
  const auto after = server->data_version().value();
  CHECK(after != before);
  CHECK(server->data_version().value() == after);
  CHECK(server->members().find_token("t1").value().has_value());
}

TEST_CASE("a database that is locked for too long is unavailable, unchanged, and usable later") {
  const Folder folder;
  const auto server = folder.open().value();
  const auto tool = folder.open().value();
  sqlite3_busy_timeout(server->raw(), 20);
  exec(tool->raw(), "BEGIN IMMEDIATE");
  CHECK(server->members().touch("a", false).error().code() == Errc::unavailable);
  CHECK(server->members().all().value().empty());  // Readers don't wait.
  exec(tool->raw(), "COMMIT");
  CHECK(server->members().touch("a", false));
}

TEST_CASE("a history that meets the limit of a file's size has no space, and is usable later") {
  const Folder folder;
  const auto store = folder.open().value();
  // A name of its own each time: a row that stays as it is within a millisecond is not written.
  const auto touch = [&store](const char* client) { return store->members().touch(client, false); };
  REQUIRE(touch("a"));
  ignore_write_signals();
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto full = touch("b");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  REQUIRE_FALSE(full);
  CHECK(full.error().code() == Errc::no_space);
  CHECK(full.error().message().find("files of up to 4096 bytes (ulimit -f") != std::string::npos);
  CHECK(touch("c"));
}

/// A disk with a quota that is used up, or not: the system calls of SQLite's VFS ask it.
class Quota {
 public:
  Quota() {
    set("open", reinterpret_cast<sqlite3_syscall_ptr>(open));
    set("pwrite", reinterpret_cast<sqlite3_syscall_ptr>(write));
    set("pwrite64", reinterpret_cast<sqlite3_syscall_ptr>(write));
    left = INT_MAX;
  }
  ~Quota() {
    for (const char* name : {"open", "pwrite", "pwrite64"}) set(name, nullptr);
  }
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;

  static inline int left = 0;  // How many calls there is room for.

 private:
  static bool has_room() {
    if (left > 0) return --left, true;
    errno = EDQUOT;
    return false;
  }
  static int open(const char* path, int flags, int mode) {
    std::error_code none;
    const bool makes = (flags & O_CREAT) != 0 && !fs::exists(path, none);
    return makes && !has_room() ? -1 : ::open(path, flags, mode);
  }
  static ssize_t write(int file, const void* bytes, std::size_t count, off_t at) {
    return has_room() ? ::pwrite(file, bytes, count, at) : -1;
  }
  static void set(const char* name, sqlite3_syscall_ptr function) {
    sqlite3_vfs* const vfs = sqlite3_vfs_find("unix");
    if (vfs->xGetSystemCall(vfs, name) != nullptr) vfs->xSetSystemCall(vfs, name, function);
  }
};

TEST_CASE("a history over its quota has no space at whatever call, and is usable later") {
  const Quota quota;
  const Folder folder;
  const auto store = folder.open().value();
  const auto touch = [&store](const std::string& client) {
    return store->members().touch(client, false);
  };
  for (int left = 0;; ++left) {
    CAPTURE(left);
    REQUIRE(left < 1000);
    Quota::left = left;
    const auto written = touch(std::to_string(left));
    Quota::left = INT_MAX;
    if (written) break;
    CHECK(written.error().code() == Errc::no_space);
    CHECK(written.error().message().find("Disk quota exceeded") != std::string::npos);
    CHECK(written.error().message().find("raise the quota") != std::string::npos);
    REQUIRE(touch("again " + std::to_string(left)));
  }
}

TEST_CASE("a history that is opened over its quota has no space, and can be opened later") {
  const Quota quota;
  const Folder folder;
  REQUIRE(folder.open());
  for (int left = 0;; ++left) {
    CAPTURE(left);
    REQUIRE(left < 1000);
    Quota::left = left;
    const auto opened = folder.open();
    Quota::left = INT_MAX;
    if (opened) break;
    CHECK_MESSAGE(opened.error().code() == Errc::no_space, opened.error().message());
    REQUIRE(folder.open());
  }
}

/// Runs `work` in a process of its own; ends the test if it can't start one.
template <class Work>
pid_t in_child(Work work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(work() ? 0 : 1);
  return child;
}

bool child_was_good(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("processes that create the history at the same moment all succeed") {
  // Switching to WAL needs an exclusive lock, and SQLite does not wait for that lock by itself.
  for (int i = 0; i < 20; ++i) {
    const Folder folder;
    std::vector<pid_t> children;
    for (int c = 0; c < 4; ++c) {
      children.push_back(in_child([&] {
        const auto store = folder.open();
        if (!store) std::fputs((store.error().message() + "\n").c_str(), stderr);
        return store && (*store)->members().touch("c" + std::to_string(c), false);
      }));
    }
    for (const pid_t child : children) CHECK(child_was_good(child));
    CHECK(folder.open().value()->members().all().value().size() == children.size());
  }
}

TEST_CASE("two processes write at once and lose nothing") {
  const Folder folder;
  const int writes = 50;
  const auto add = [&](Store& store, const std::string& who) {
    for (int i = 0; i < writes; ++i) {
      if (!store.members().add_token(some_token(who + std::to_string(i), who))) return false;
    }
    return true;
  };
  const pid_t child = in_child([&] {
    const auto store = folder.open();  // Migrates, or waits until the parent has migrated.
    return store && add(**store, "child");
  });
  const auto store = folder.open().value();
  CHECK(add(*store, "parent"));
  CHECK(child_was_good(child));
  for (int i = 0; i < writes; ++i) {
    CHECK(store->members().find_token("child" + std::to_string(i)).value().has_value());
    CHECK(store->members().find_token("parent" + std::to_string(i)).value().has_value());
  }
}

TEST_CASE("migrations run in order, each once, and a failed one keeps those before it") {
  const Folder folder;
  Database::Options connection;
  connection.path = folder.file;
  const auto db = Database::open(connection).value();
  const std::vector<Migration> good{{"first", "CREATE TABLE a (x)"},
                                    {"second", "INSERT INTO a VALUES (1)"}};
  std::vector<Migration> bad = good;
  bad[1].sql = "INSERT INTO a VALUES (7); INSERT INTO nowhere VALUES (1)";
  const auto failed = migrate(*db, bad);
  REQUIRE(!failed);
  CHECK(failed.error().message().find("second") != std::string::npos);
  CHECK(user_version(*db).value() == 1);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(migrate(*db, good));
    CHECK(user_version(*db).value() == 2);
    const auto rows =
        db->query("SELECT x FROM a", [](const Row& row) { return row.integer(0); }).value();
    CHECK(rows == std::vector<std::int64_t>{1});
  }
  CHECK(migrate(*db, std::span(good).first(1)).error().code() == Errc::conflict);
}

}  // namespace fl::test
