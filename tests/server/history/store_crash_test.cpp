// SPDX-License-Identifier: Apache-2.0
// The real store on a disk that fails. The life of a run is a list of calls. A life without faults
// records what the database holds after each call. Then the same life is cut short at every
// operation on the disk. Afterwards the database must hold exactly what the successful calls wrote,
// perhaps with the interrupted call, and the rest of the calls must lead to the same end.
#include "server/history/store.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/sqlite_files_vfs.hpp"

#include <doctest/doctest.h>
#include <sqlite3.h>

#include <functional>

namespace fl::test {

using namespace fl::server;
namespace {

using Call = std::function<Result<void>(Store&)>;

template <class T>
Result<void> outcome(const Result<T>& result) {
  if (!result) return result.error();
  return {};
}

TaskRecord task_of(Store& store, Round round, std::size_t index, TaskState state) {
  const auto tasks = store.rounds().tasks(1, round);
  TaskRecord task = tasks ? tasks->at(index) : TaskRecord();  // Unreadable: the decision will fail.
  if (state == TaskState::accepted) return accepted(task);
  task.state = state;
  task.reason = "because";
  return task;
}

/// Each call changes the database and reads what it needs from it, so it also works after a
/// restart.
const std::vector<Call> life{
    [](Store& s) { return outcome(s.runs().create(some_run())); },
    [](Store& s) { return s.members().add_token(some_token("t1", "a")); },
    [](Store& s) { return s.members().use_token("t1", some_client("a", "01"), "k1"); },
    [](Store& s) { return s.members().touch("b", true); },
    [](Store& s) { return s.rounds().set_initial_model(1, some_checkpoint(0)); },
    [](Store& s) {
      return outcome(
          s.rounds().open(1, some_round(1), {some_task("a"), some_task("b"), some_task("c")}));
    },
    [](Store& s) {
      return s.rounds().decide(
          {task_of(s, 1, 0, TaskState::accepted), task_of(s, 1, 1, TaskState::lost)});
    },
    [](Store& s) { return outcome(s.rounds().add_tasks(1, 1, {some_task("d")})); },
    [](Store& s) { return s.rounds().decide({task_of(s, 1, 3, TaskState::accepted)}); },
    [](Store& s) { return s.rounds().commit(some_commit(1, 1)); },
    [](Store& s) { return s.measurements().add(some_evaluation(1, 1, "a", 10, 1.5, 0.5)); },
    [](Store& s) { return outcome(s.rounds().open(1, some_round(2), {some_task("a")})); },
    // A long text: this call writes many pages.
    [](Store& s) { return s.events().add(1, EventLevel::warning, std::string(50'000, 'x')); },
    [](Store& s) { return s.members().add_certificate("a", "02", "01"); },
    [](Store& s) { return s.members().admit("a", "02"); },
    [](Store& s) {
      RoundCommit commit = some_commit(1, 2);
      commit.dropped_versions = {0};
      return s.rounds().commit(commit);
    },
    [](Store& s) { return s.runs().set_state(1, RunState::finished); },
    [](Store& s) { return s.members().revoke("a", "root"); },
};

/// All rows of all tables. Times appear only as set or not set, as a life that was cut short asks
/// the clock more often.
std::string contents(Store& store) {
  std::string text;
  for (const std::string table : {"run", "round", "task", "checkpoint", "metric", "client",
                                  "certificate", "token", "event", "round_summary"}) {
    sqlite3_stmt* rows = nullptr;
    REQUIRE(sqlite3_prepare_v2(store.raw(), ("SELECT * FROM " + table).c_str(), -1, &rows,
                               nullptr) == SQLITE_OK);
    int code = 0;
    while ((code = sqlite3_step(rows)) == SQLITE_ROW) {
      text += table;
      for (int i = 0; i < sqlite3_column_count(rows); ++i) {
        const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(rows, i));
        const bool is_time = std::string_view(sqlite3_column_name(rows, i)).ends_with("at");
        const std::string cell = value == nullptr ? "NULL" : is_time ? "set" : value;
        text += " " + (cell.size() < 100 ? cell : Digest::of(bytes_of(cell)).hex());
      }
      text += "\n";
    }
    REQUIRE(code == SQLITE_DONE);
    sqlite3_finalize(rows);
  }
  return text;
}

struct Machine {  // One at a time: its VFS has a name.
  MemFiles files;
  SqliteFilesVfs vfs{"store-crash-test", files};

  Result<std::unique_ptr<Store>> open() {
    return Store::open({.path = "/history.sqlite", .vfs = vfs.name(), .exclusive = true});
  }
};

/// contents() after the first i calls of a life without faults.
std::vector<std::string> contents_after_each_call() {
  Machine machine;
  const auto store = machine.open().value();
  std::vector<std::string> after{contents(*store)};
  for (const Call& call : life) {
    REQUIRE(call(*store));
    after.push_back(contents(*store));
    REQUIRE(after.back() != after[after.size() - 2]);
  }
  return after;
}

/// Makes the calls from `done` on until one fails. Returns how many were made, and the failure.
std::size_t live(Store& store, std::size_t done, Result<void>& failure) {
  for (; done < life.size(); ++done) {
    failure = life[done](store);
    if (!failure) break;
  }
  return done;
}

/// Opens the database after the fault, checks that it holds what `done` calls wrote, or one call
/// more, and makes the rest of the calls.
void check_and_finish(Machine& machine, std::size_t done, const std::vector<std::string>& after) {
  auto store = machine.open();
  REQUIRE(store);
  const std::string found = contents(**store);
  const bool one_more = done + 1 < after.size() && found == after[done + 1];
  REQUIRE_MESSAGE((found == after[done] || one_more), "found:\n" << found);
  Result<void> failure;
  REQUIRE(live(**store, one_more ? done + 1 : done, failure) == life.size());
  REQUIRE(contents(**store) == after.back());
}

/// Which operations fail, each in a life of its own: `first` and every `stride`-th from there on,
/// with sanitizers a seventh of these.
struct Places {
  std::uint64_t first = 1;
  std::uint64_t stride = 1;
};

/// Runs one life for each place n. `arm` sets the fault at the n-th of the `counted` operations.
/// After a life, `recover` runs while its files are still open, and then the check. Ends when a
/// life has fewer than n operations. Returns about how many operations cut a life short.
int with_a_fault_everywhere(std::uint64_t MemFiles::Operations::*counted, Places places,
                            const std::function<void(Machine&, std::uint64_t n)>& arm,
                            const std::function<void(Machine&)>& recover,
                            const std::function<void(Machine&)>& at_the_end) {
  const auto after = contents_after_each_call();
  const std::uint64_t stride = places.stride * or_sanitized(1, 7);
  std::uint64_t faults = 0;
  for (std::uint64_t n = places.first;; n += stride) {
    REQUIRE(n < 5000);
    CAPTURE(n);
    Machine machine;
    std::size_t done = 0;
    Result<void> failure;
    arm(machine, n);
    {
      auto store = machine.open();
      failure = outcome(store);
      if (store) done = live(**store, 0, failure);
      if (!failure && store) {
        CHECK(failure.error().code() == Errc::io);
        // A broken store returns the same error for every call.
        const auto again = (*store)->runs().latest();
        REQUIRE(!again);
        CHECK(again.error().message() == (*store)->members().all().error().message());
      }
      recover(machine);
    }
    machine.files.fail_at(0);
    // SQLite tolerates the failure of some operations, so a fault that was reached may not end a
    // life.
    const bool was_reached = machine.files.operations().*counted >= n;
    check_and_finish(machine, done, after);
    at_the_end(machine);
    auto store = machine.open();
    REQUIRE(store);
    REQUIRE(contents(**store) == after.back());
    if (!failure) ++faults;
    if (failure && !was_reached) return static_cast<int>(faults * stride);
  }
}

void nothing(Machine&) {}

}  // namespace

TEST_CASE("power loss between any two operations loses no call that returned") {
  constexpr std::uint64_t seeds = 3;  // Each cuts other places, so all are cut.
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    const int cuts = with_a_fault_everywhere(
        &MemFiles::Operations::changes, {.first = 1 + seed, .stride = seeds},
        [](Machine& machine, std::uint64_t n) { machine.files.cut_power_at(n); },
        [&](Machine& machine) { machine.files.crash(seed); },
        [&](Machine& machine) { machine.files.crash(seed + 100); });
    CHECK(cuts > 50);
  }
}

TEST_CASE("kill -9 between any two operations loses no call that returned") {
  const int kills = with_a_fault_everywhere(
      &MemFiles::Operations::changes, {.stride = 2},
      [](Machine& machine, std::uint64_t n) { machine.files.cut_power_at(n); },
      [](Machine& machine) { machine.files.kill(); }, nothing);
  CHECK(kills > 50);
}

TEST_CASE("one failing operation costs at most an error, and after a restart the life goes on") {
  const int failures = with_a_fault_everywhere(
      &MemFiles::Operations::all, {.stride = 3},
      [](Machine& machine, std::uint64_t n) { machine.files.fail_at(n); }, nothing, nothing);
  CHECK(failures > 50);
}

TEST_CASE("after a sync that lost its pages, a kill and a power loss keep all successful calls") {
  // The restarted server reads pages from the cache that never reached the disk. It must not rely
  // on them.
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    CAPTURE(seed);
    const int losses = with_a_fault_everywhere(
        &MemFiles::Operations::syncs, {},
        [](Machine& machine, std::uint64_t n) { machine.files.fail_at(n, Fault::sync_lost); },
        [](Machine& machine) { machine.files.kill(); },
        [&](Machine& machine) { machine.files.crash(seed); });
    CHECK(losses > 10);
  }
}

TEST_CASE("on a full disk calls fail, and the same store works again once there is space") {
  const auto after = contents_after_each_call();
  int pauses = 0;
  for (std::uint64_t room = 0; room < 400'000; room += 3000) {
    CAPTURE(room);
    Machine machine;
    const auto store = machine.open().value();
    machine.files.space_limit(machine.files.bytes_used() + room);
    Result<void> failure;
    const std::size_t done = live(*store, 0, failure);
    if (!failure) {
      ++pauses;
      CHECK(failure.error().code() == Errc::no_space);
      REQUIRE(contents(*store) == after[done]);
      CHECK(life[done](*store).error().code() == Errc::no_space);  // Still full.
    }
    machine.files.space_limit(MemFiles::no_limit);
    REQUIRE(live(*store, done, failure) == life.size());
    REQUIRE(contents(*store) == after.back());
  }
  CHECK(pauses > 20);
}

TEST_CASE("creating the store on a full disk is no_space, and works once there is space") {
  const auto after = contents_after_each_call();
  Machine machine;
  machine.files.space_limit(10'000);
  CHECK(machine.open().error().code() == Errc::no_space);
  machine.files.space_limit(MemFiles::no_limit);
  check_and_finish(machine, 0, after);
}

}  // namespace fl::test
