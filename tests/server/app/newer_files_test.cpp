// SPDX-License-Identifier: Apache-2.0
// Which files of a state are newer than its history, and what a server does then. What a crash
// leaves is not.
#include "server/app/newer_files.hpp"
#include "server/history/store.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/log.hpp"
#include "tests/server/history/store_world.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/wire/simulation.hpp"

#include <algorithm>
#include <fstream>

namespace fl::test {

using namespace fl::server;
namespace {

namespace fs = std::filesystem;

struct StateFolder {
  TemporaryFolder folder;
  fs::path path = folder.path();

  StateFolder() { set_log_level(LogLevel::off); }
  ~StateFolder() { set_log_level(LogLevel::info); }

  [[nodiscard]] std::unique_ptr<Store> open() const {
    return Store::open({.path = path / "history.sqlite"}).value();
  }
  void put(const std::string& name) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << "x";
  }
  [[nodiscard]] std::vector<std::string> newer() const {
    std::vector<std::string> names;
    for (const NewerFile& file : find_newer_files(path).value()) names.push_back(file.path);
    std::ranges::sort(names);
    return names;
  }
};

using Names = std::vector<std::string>;

/// A run with an initial model, and a round that is open with one task.
void begin_round(Store& store) {
  const RunId run = store.runs().create(some_run()).value().id;
  store.rounds().set_initial_model(run, some_checkpoint(0)).value();
  store.rounds().open(run, some_round(1), {some_task("a", 1)}).value();
}

}  // namespace

TEST_CASE("what a crash leaves of the version that was being made is not newer") {
  const StateFolder state;
  CHECK(state.newer().empty());  // A state that nothing has begun.
  begin_round(*state.open());
  for (const char* name : {"round-000000.safetensors", "round-000001.safetensors",
                           "round-000001.delta.tmp", "round-000001.state", "notes.txt"})
    state.put(std::string("checkpoints/") + name);
  for (const char* name : {"kept-updates/run-1/round-000001.json", "spool/task-1-0123456789abcdef",
                           "spool/spare-9", "references/7", "address.json"})
    state.put(name);
  CHECK(state.newer().empty());
  CHECK(check_nothing_newer(state.path));
  // A run that waits has no model, and may have made its first.
  state.open()->runs().create(some_run("fedcba9876543210")).value();
  state.put("checkpoints/run-2/round-000000.safetensors");
  CHECK(state.newer().empty());
  // Files that somebody has put into the folder of a pruned run belong to no run.
  const auto store = state.open();
  store->runs().set_state(1, RunState::stopped).value();
  store->archive().remove_run(1).value();
  state.put("checkpoints/round-000009.safetensors");
  CHECK(state.newer().empty());
}

TEST_CASE("models, coded steps, the method's state, kept updates and uploads can be newer") {
  const StateFolder state;
  begin_round(*state.open());
  const Names newer = {
      "checkpoints/round-000002.delta",       "checkpoints/round-000015.safetensors",
      "checkpoints/round-000015.state",       "checkpoints/run-2",
      "kept-updates/run-1/round-000002.json", "kept-updates/run-3",
      "spool/task-2-0123456789abcdef"};
  for (const std::string& name : newer) {
    CAPTURE(name);
    const bool is_folder = name.ends_with("run-2") || name.ends_with("run-3");
    state.put(is_folder ? name + "/round-000000.safetensors" : name);
    CHECK(state.newer() == Names{name});
    CHECK(check_nothing_newer(state.path).has_error());
    fs::remove_all(state.path / name);
  }
  state.put("checkpoints/round-000014.safetensors");
  state.put("checkpoints/round-000015.safetensors");
  const auto refused = check_nothing_newer(state.path);
  REQUIRE(refused.has_error());
  CHECK(refused.error().code() == Errc::conflict);
  for (const char* word :
       {"history.sqlite is older than checkpoints/round-000015.safetensors (run 1 ends there at "
        "version 0), and than 1 more",
        "history.sqlite-wal", "--older-history"})
    CHECK(refused.error().message().find(word) != std::string::npos);
}

TEST_CASE("a history without runs beside models is older than they are") {
  const StateFolder state;
  state.put("checkpoints/round-000000.safetensors");
  CHECK(state.newer() == Names{"checkpoints/round-000000.safetensors"});
  CHECK_FALSE(fs::exists(state.path / "history.sqlite"));  // Looking makes none.
  (void)state.open();
  CHECK(state.newer() == Names{"checkpoints/round-000000.safetensors"});
  fs::remove(state.path / "checkpoints" / "round-000000.safetensors");
  fs::create_directories(state.path / "checkpoints" / "run-7");
  CHECK(state.newer() == Names{"checkpoints/run-7"});
}

TEST_CASE("a history that has forgotten who joined, or was revoked, is older than the note") {
  const StateFolder state;
  const auto store = state.open();
  note_audit(state.path, 0).value();
  store->audit().add(AuditKind::refusal, "a", "x").value();
  store->audit().add(AuditKind::refusal, "b", "x").value();
  CHECK(store->audit().rows().value() == 2);
  CHECK(state.newer().empty());  // The note is behind.
  note_audit(state.path, 2).value();
  CHECK(state.newer().empty());
  note_audit(state.path, 3).value();
  CHECK(state.newer() == Names{"audit.json"});
  std::ofstream(state.path / "audit.json") << R"({"rows": -1})";
  CHECK(code_of(find_newer_files(state.path)) == Errc::corrupt);
}

namespace {

Awaitable<void> stop_after(Duration time, std::shared_ptr<std::atomic<bool>> stop,
                           std::function<void()> before) {
  co_await sleep_for(time);
  before();
  co_await sleep_for(time);
  *stop = true;
}

}  // namespace

TEST_CASE("a note of the audit that can't be written ends no run, and is tried again") {
  const StateFolder state;
  Simulation simulation;
  const auto store = state.open();
  store->audit().add(AuditKind::refusal, "a", "x").value();
  Offload thread;
  std::optional<Error> failure;
  StoreThread calls(simulation.io.get_executor(), *store, thread, 0,
                    {[&failure](const Error& error) { failure = error; }});
  const auto stop = std::make_shared<std::atomic<bool>>(false);
  const fs::path note = state.path / "audit.json";
  fs::create_directories(note);  // So it can't be written.
  HistoryChanges changes(simulation.io.get_executor(), {});
  simulation.spawn(keep_audit_note(calls, changes, state.path, stop));
  simulation.spawn(stop_after(4 * limits::history_pace, stop, [&] {
    CHECK(fs::is_directory(note));
    fs::remove_all(note);
  }));
  simulation.run();
  CHECK_FALSE(failure);
  CHECK(posix_files().read_all(note).value() == "{\"rows\":1}\n");
  // Rows that came since the last look are noted at the end.
  store->audit().add(AuditKind::refusal, "a", "x").value();
  note_last_audit(store->audit(), state.path);
  CHECK(posix_files().read_all(note).value() == "{\"rows\":2}\n");
}

TEST_CASE("looking at a history changes nothing, whatever its schema is") {
  const StateFolder state;
  { begin_round(*state.open()); }
  const auto bytes = posix_files().read_all(state.path / "history.sqlite").value();
  state.put("checkpoints/round-000015.safetensors");
  CHECK(check_nothing_newer(state.path).has_error());
  CHECK(posix_files().read_all(state.path / "history.sqlite").value() == bytes);
  CHECK_FALSE(fs::exists(state.path / "history.sqlite-wal"));
}

TEST_CASE("newer files are set aside, where they stay as they are") {
  const StateFolder state;
  begin_round(*state.open());
  for (const char* name : {"checkpoints/round-000001.safetensors",
                           "checkpoints/round-000015.safetensors", "checkpoints/run-2/x"})
    state.put(name);
  note_audit(state.path, 9).value();
  set_newer_aside(state.path).value();
  CHECK(check_nothing_newer(state.path));
  CHECK(fs::exists(state.path / "checkpoints" / "round-000001.safetensors"));
  fs::path aside;
  for (const auto& entry : fs::directory_iterator(state.path))
    if (entry.path().filename().string().starts_with("newer-than-history-")) aside = entry.path();
  for (const char* name :
       {"checkpoints/round-000015.safetensors", "checkpoints/run-2/x", "audit.json"}) {
    CAPTURE(name);
    CHECK(fs::exists(aside / name));
    CHECK_FALSE(fs::exists(state.path / name));
  }
  set_newer_aside(state.path).value();  // There is nothing more.
}

}  // namespace fl::test
