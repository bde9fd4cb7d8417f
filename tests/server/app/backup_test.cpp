// SPDX-License-Identifier: Apache-2.0
// A backup beside a server that goes on making versions and removing old ones: whenever that
// happens, the run can go on from the backup.
#include "server/app/backup.hpp"

#include "server/app/run_queue.hpp"
#include "server/versions/make_version.hpp"
#include "shared/base/io/bytes.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>

namespace fl::test {

using namespace fl::server;
namespace {

/// The real disk. Before the n-th time that somebody looks at it, something happens.
class WatchedFiles final : public ForwardingFiles {
 public:
  explicit WatchedFiles(std::function<void(std::uint64_t n)> look)
      : ForwardingFiles(posix_files()), look_(std::move(look)) {}
  Result<std::unique_ptr<File>> open(const Path& path, OpenMode mode) override {
    if (mode == OpenMode::read) look_(++looks_);
    return ForwardingFiles::open(path, mode);
  }
  Result<std::vector<std::string>> list(const Path& folder) override {
    look_(++looks_);
    return ForwardingFiles::list(folder);
  }
  [[nodiscard]] std::uint64_t looks() const { return looks_; }

 private:
  std::function<void(std::uint64_t)> look_;
  std::uint64_t looks_ = 0;
};

/// A server's state with a running run. It keeps the models of three versions, and a state beside
/// the newest two, as a server does.
struct RunningServer {
  TemporaryFolder folder;
  std::filesystem::path state = folder / "state";
  std::unique_ptr<Store> store;
  RunRecord run;
  Layout layout = Layout::make({{"w", {4}}}).value();

  RunningServer() {
    posix_files().make_folder(state).value();
    store = Store::open({.path = state / "history.sqlite", .durable = false}).value();
    run = store->runs().create(some_run()).value();
    store->rounds().set_initial_model(run.id, written(0)).value();
    for (Round round = 1; round <= 4; ++round) close(round);
  }

  void close(Round round) {
    posix_files().write_atomically(beside(state, state_names(round)[1]), content(round)).value();
    CheckpointRecord made = written(round);
    if (round >= 2) {
      for (const auto& name : state_names(round - 2)) remove(name);
    }
    const auto tasks = store->rounds().open(run.id, some_round(round), {some_task("a")}).value();
    store->rounds().decide({accepted(tasks[0])}).value();
    RoundCommit commit = some_commit(run.id, round);
    commit.checkpoint = made;
    if (round >= 3) commit.dropped_versions = {round - 3};
    store->rounds().commit(commit).value();
    if (round >= 3) {
      remove(checkpoint_name(round - 3));
      remove(delta_name(round - 3));
    }
    newest = round;
  }
  Version newest = 0;

  [[nodiscard]] std::filesystem::path beside(const std::filesystem::path& of,
                                             const std::string& name) const {
    return checkpoints_of(of, run) / name;
  }
  static Bytes content(Version version) {
    static std::string text;
    text = fmt::format("the state of version {}", version);
    return bytes_of(std::string_view(text));
  }

  /// Checks whether the run can go on from this backup: from which version, with its state.
  void check(const std::filesystem::path& backup, Version at_least) const {
    const auto copied = Store::open({.path = backup / "history.sqlite"}).value();
    const auto versions = copied->rounds().checkpoints(run.id).value();
    REQUIRE_FALSE(versions.empty());
    CHECK(versions.back().version >= at_least);
    for (const auto& version : versions) {
      CAPTURE(version.version);
      const auto opened = open_version(posix_files(), checkpoints_of(backup, run), version, layout);
      REQUIRE(opened);
      CHECK(check_digest(**opened, layout));
    }
    const Version newest_copied = versions.back().version;
    const Bytes expected = content(newest_copied);
    CHECK(posix_files().read_all(beside(backup, state_names(newest_copied)[1])).value() ==
          std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  }

 private:
  [[nodiscard]] CheckpointRecord written(Version version) const {
    const auto at = checkpoints_of(state, run);
    auto writer = CheckpointWriter::create(posix_files(), at, version, layout, {}).value();
    writer.append(std::vector<float>(4, static_cast<float>(version))).value();
    CheckpointRecord record = writer.finish().value();
    if (version == 0) return record;
    record.delta_file = delta_name(version);
    record.delta_bytes = content(version).size();
    posix_files().write_atomically(at / record.delta_file, content(version)).value();
    return record;
  }
  void remove(const std::string& name) const { posix_files().remove(beside(state, name)).value(); }
};

TEST_CASE("a run can go on from a backup, whenever the server makes its next versions") {
  // One version is made, or enough of them that all that the copy began with is gone.
  for (const Round rounds : {1U, 2U, 3U}) {
    std::uint64_t looks = 1;
    for (std::uint64_t when = 1; when <= looks; ++when) {
      CAPTURE(rounds);
      CAPTURE(when);
      RunningServer server;
      WatchedFiles files([&](std::uint64_t look) {
        if (look != when) return;
        for (Round i = 0; i < rounds; ++i) server.close(server.newest + 1);
      });
      const auto report = back_up(files, *server.store, server.state, server.folder / "backup");
      REQUIRE(report);
      server.check(server.folder / "backup", 4);
      looks = std::min(files.looks(), std::uint64_t{25});
    }
    CHECK(looks > 5);
  }
}

TEST_CASE("a backup that a server overtakes each time ends with an error, and leaves nothing") {
  RunningServer server;
  WatchedFiles files([&](std::uint64_t) {
    for (Round i = 0; i < 2; ++i) server.close(server.newest + 1);
  });
  const auto report = back_up(files, *server.store, server.state, server.folder / "backup");
  REQUIRE_FALSE(report);
  CHECK(report.error().code() == Errc::unavailable);
  CHECK(report.error().message().find("faster than the copy") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(server.folder / "backup"));
  CHECK_FALSE(std::filesystem::exists(server.folder / "backup.tmp"));
}

TEST_CASE("a version whose coded step is gone is left out of a backup, and said") {
  RunningServer server;
  posix_files().remove(server.beside(server.state, delta_name(3))).value();
  const auto report =
      back_up(posix_files(), *server.store, server.state, server.folder / "backup").value();
  REQUIRE(report.left_out.size() == 1);
  CHECK(report.left_out[0].find("after round 3") != std::string::npos);
  CHECK(report.models == 2);
  server.check(server.folder / "backup", 4);
}

}  // namespace
}  // namespace fl::test
