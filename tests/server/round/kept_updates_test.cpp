// SPDX-License-Identifier: Apache-2.0
// Kept updates on the server's disk: which stay, what a crash at each change leaves, and that a
// change of a description shows.
#include "server/round/kept_updates.hpp"

#include "server/versions/delta_references.hpp"
#include "server/versions/make_version.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

using Names = std::vector<std::string>;

const std::filesystem::path spool_folder = "/spool";
const std::filesystem::path kept_folder = "/kept";
const std::filesystem::path checkpoints = "/checkpoints";
const std::filesystem::path references = "/references";

/// A disk between whose folders nothing can be renamed.
class Divided final : public ForwardingFiles {
 public:
  using ForwardingFiles::ForwardingFiles;
  Result<void> rename(const Path& from, const Path& to) override {
    if (from.parent_path() != to.parent_path()) return Error(Errc::io, "another file system");
    return ForwardingFiles::rename(from, to);
  }
};

RunPlan plan_of(const std::string& rounds) {
  RunSettings settings;
  settings.codec = "none";
  settings.keep_updates = rounds;
  RunRecord run;
  run.id = 1;
  run.key = "0123456789abcdef";
  return RunPlan(settings, run, Layout::make({{"w", {4}}}).value());
}

/// A server's process: each round has two updates, of a and b, and a state beside its version. That
/// of b is a delta.
struct Server {
  explicit Server(Files& disk, const std::string& rounds)
      : files(disk), plan(plan_of(rounds)), spool(disk, spool_folder) {
    REQUIRE(spool.prepare());
    REQUIRE(files.make_folder(checkpoints));
    REQUIRE(files.make_folder(references));
  }

  Files& files;
  const RunPlan plan;
  Spool spool;
  KeptUpdates kept{plan, files, spool, {kept_folder, checkpoints, references}};
  OpenRound round;

  static std::string bytes_of_update(Round number, const std::string& client) {
    return fmt::format("the update of {} in round {}", client, number);
  }
  static TaskId reference_in(Round number) { return TaskId{1000 + std::int64_t{number}}; }
  static std::string bytes_of_reference(Round number) { return fmt::format("referred {}", number); }
  Result<void> make_reference(Round number) {
    const auto path = DeltaReferences::path_of(references, reference_in(number));
    return files.write_atomically(path, bytes_of(bytes_of_reference(number)));
  }
  /// Two whole updates are in the spool, and a third is coming.
  Result<void> receive(Round number) {
    round = OpenRound();
    round.record.round = number;
    round.record.base_version = number - 1;
    FL_CHECK(make_reference(number));
    for (const char* const client : {"a", "b", "c"}) {
      TaskRecord task;
      task.id = TaskId{10 * std::int64_t{number} + client[0] - 'a'};
      task.client = client;
      const std::string update = bytes_of_update(number, client);
      const auto view = bytes_of(std::string_view(update));
      FL_TRY(const auto upload, spool.open(task.id, update.size(), Digest::of(view)));
      if (task.client == "c") {
        FL_CHECK(upload->append(view.first(5)));
      } else {
        FL_CHECK(upload->append(view.subspan(upload->next_offset())));
        FL_CHECK(spool.finish(*upload));
        task.state = TaskState::accepted;
        task.examples = 7;
        task.update_bytes = update.size();
        task.update_digest = Digest::of(view);
        task.spool_file = upload->file_name();
        if (task.client == "b") task.reference = reference_in(number);
      }
      Task entry;
      entry.record = task;
      round.put(std::move(entry));
    }
    return spool.sync_names();
  }
  /// The version's files; its state is that of the next round's base.
  Result<void> make_version(Version version) {
    for (const std::string& name : state_names(version)) {
      FL_TRY(const auto file, files.open(checkpoints / name, OpenMode::truncate));
      FL_CHECK(file->write_at(0, bytes_of(name)));
      FL_CHECK(file->sync());
    }
    return files.sync_folder(checkpoints);
  }
  [[nodiscard]] std::vector<TaskRecord> tasks() const {
    std::vector<TaskRecord> all;
    for (const auto& [client, task] : round.tasks) all.push_back(task.record);
    return all;
  }
  /// As the engine does; the row of the history is between the two.
  Result<void> describe() { return kept.describe(kept.description_of(round)); }
  Result<void> take() {
    FL_CHECK(kept.take(kept.description_of(round)));
    return spool.keep_only({});
  }
  void close(Round number) {
    REQUIRE(receive(number));
    REQUIRE(make_version(number));
    REQUIRE(describe());
    REQUIRE(take());
  }
};

Names names_in(Files& files, const std::filesystem::path& folder) {
  return files.list(folder).value();
}

/// Whether all of the round is there, and right.
bool is_whole(Files& files, Round number) {
  const auto described = read_description(files, kept_folder, number);
  if (!described || described->updates.size() != 2 || described->state.size() != 3) return false;
  if (described->references.size() != 1) return false;
  const KeptState& reference = described->references.front();
  const auto referred = files.read_all(kept_folder / reference.file);
  if (!referred || *referred != Server::bytes_of_reference(number)) return false;
  if (reference.digest != Digest::of(bytes_of(std::string_view(*referred)))) return false;
  for (const KeptUpdate& update : described->updates) {
    const std::string bytes = Server::bytes_of_update(number, update.client);
    const auto digest = digest_of_file(files, kept_folder / update.file, update.bytes);
    if (!digest || *digest != update.digest || update.bytes != bytes.size()) return false;
    if (update.digest != Digest::of(bytes_of(std::string_view(bytes)))) return false;
  }
  for (const KeptState& state : described->state) {
    const auto digest = digest_of_file(files, checkpoints / state.file, state.bytes);
    if (!digest || *digest != state.digest) return false;
  }
  return true;
}

TEST_CASE("the newest rounds stay whole, and older ones go with the state that they began from") {
  MemFiles disk;
  Server server(disk, "2");
  REQUIRE(server.make_version(0));
  for (Round number = 1; number <= 5; ++number) {
    server.close(number);
    CHECK(described_rounds(disk, kept_folder).value() ==
          (number == 1 ? std::vector<Round>{1} : std::vector<Round>{number - 1, number}));
    CHECK(names_in(disk, kept_folder).size() == (number == 1 ? 4u : 8u));
    CHECK(names_in(disk, references).empty());
    for (const Round each : described_rounds(disk, kept_folder).value())
      CHECK(is_whole(disk, each));
    CHECK(names_in(disk, spool_folder).size() <= 1);  // A spare, of the upload that was refused.
  }
  CHECK(version_of_state(names_in(disk, checkpoints).front()) == Version{3});
}

TEST_CASE("a description has all that it was given, and any change of it shows") {
  MemFiles disk;
  Server server(disk, "all");
  REQUIRE(server.make_version(0));
  server.close(1);
  const KeptRound read = read_description(disk, kept_folder, 1).value();
  KeptRound wanted = server.kept.description_of(server.round);
  wanted.state = read.state;
  wanted.references = read.references;
  CHECK(read == wanted);
  CHECK(settings_from_json(read.settings).value().keep_updates == "all");
  REQUIRE(read.state.size() == 3);
  CHECK(read.state[0].bytes == read.state[0].file.size());

  const auto path = kept_folder / description_name(1);
  const std::string right = disk.read_all(path).value();
  for (std::size_t at = 0; at + 1 < right.size(); ++at) {
    std::string changed = right;
    changed[at] ^= 1;
    REQUIRE(disk.write_atomically(path, bytes_of(changed)));
    const auto refused = read_description(disk, kept_folder, 1);
    CAPTURE(at);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code() == Errc::corrupt);
  }
  CHECK(read_description(disk, kept_folder, 2).error().code() == Errc::not_found);
}

/// The fourth round comes in, and is kept until the power is cut, before the n-th change from then.
struct Cut {
  MemFiles disk;
  std::vector<TaskRecord> tasks;
  std::uint64_t changes = 0;
  bool is_recorded = false;

  explicit Cut(std::uint64_t n) {
    Server server(disk, "2");
    REQUIRE(server.make_version(0));
    for (Round number = 1; number <= 3; ++number) server.close(number);
    REQUIRE(server.receive(4));
    REQUIRE(server.make_version(4));
    tasks = server.tasks();
    changes = disk.operations().changes;
    disk.cut_power_at(n);
    is_recorded = server.describe().has_value();
    if (is_recorded) static_cast<void>(server.take());
    changes = disk.operations().changes - changes;
  }
};

TEST_CASE("a power loss at any change while a round is kept loses nothing of a recorded round") {
  const std::uint64_t changes = Cut(0).changes;
  CHECK(changes > 10);
  for (std::uint64_t n = 1; n <= changes + 1; ++n) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(n);
      CAPTURE(seed);
      Cut cut(n);
      MemFiles& disk = cut.disk;
      disk.crash(seed);
      Server again(disk, "2");
      const Round last = cut.is_recorded ? 4 : 3;
      REQUIRE(again.kept.restore(last, cut.is_recorded ? cut.tasks : std::vector<TaskRecord>()));
      CHECK(described_rounds(disk, kept_folder).value() == std::vector<Round>{last - 1, last});
      CHECK(is_whole(disk, last - 1));
      CHECK(is_whole(disk, last));
      CHECK(names_in(disk, kept_folder).size() == 8);
      // The updates of a round that is not recorded are still where a restart looks for them.
      CHECK(names_in(disk, references).size() == (cut.is_recorded ? 0u : 1u));
      for (const TaskRecord& task : cut.tasks) {
        if (task.state == TaskState::accepted)
          CHECK(disk.exists(spool_folder / task.spool_file) == !cut.is_recorded);
      }
    }
  }
}

TEST_CASE("a start with fewer rounds removes what is more, and one with none removes all") {
  MemFiles disk;
  {
    Server server(disk, "all");
    REQUIRE(server.make_version(0));
    for (Round number = 1; number <= 5; ++number) server.close(number);
    CHECK(described_rounds(disk, kept_folder).value().size() == 5);
    CHECK(names_in(disk, checkpoints).size() == 18);
  }
  {
    Server server(disk, "3");
    REQUIRE(server.kept.restore(5, {}));
    CHECK(described_rounds(disk, kept_folder).value() == std::vector<Round>{3, 4, 5});
    CHECK(names_in(disk, kept_folder).size() == 12);
    for (const Round each : {3u, 4u, 5u}) CHECK(is_whole(disk, each));
    CHECK(names_in(disk, checkpoints).size() == 12);
  }
  Server server(disk, "none");
  REQUIRE(server.kept.restore(5, {}));
  CHECK(names_in(disk, kept_folder).empty());
  // State of versions 4 and 5, as without kept rounds.
  CHECK(names_in(disk, checkpoints).size() == 6);
}

TEST_CASE("without kept rounds nothing is written") {
  MemFiles disk;
  Server server(disk, "none");
  REQUIRE(server.kept.restore(0, {}));
  server.close(1);
  CHECK_FALSE(disk.exists(kept_folder));
}

TEST_CASE("where the spool is on another file system updates are copied") {
  MemFiles disk;
  Divided divided(disk);
  Server server(divided, "1");
  REQUIRE(server.make_version(0));
  for (const Round number : {1u, 2u}) {
    server.close(number);
    CHECK(is_whole(disk, number));
    CHECK(names_in(disk, kept_folder).size() == 4);
    CHECK(names_in(disk, references).empty());
  }
}

TEST_CASE("a description that was written before deltas were kept is read") {
  MemFiles disk;
  REQUIRE(disk.make_folder(kept_folder));
  const std::string described =
      R"({"round":1,"run":"k","settings":{},"software":"s","state":[],"updates":[{"base_version":0,)"
      R"("bytes":3,"client":"a","codec":"none","digest":"0123456789abcdef0123456789abcdef",)"
      R"("examples":7,"file":"round-000001-task-5-0","steps":2,"task":5}]})";
  const std::string digest = Digest::of(bytes_of(std::string_view(described))).hex();
  const std::string text = fmt::format(R"({{"described":{},"digest":"{}"}})", described, digest);
  REQUIRE(disk.write_atomically(kept_folder / description_name(1), bytes_of(text)));
  const auto read = read_description(disk, kept_folder, 1);
  REQUIRE(read);
  CHECK(read->references.empty());
  REQUIRE(read->updates.size() == 1);
  CHECK(read->updates.front().reference == TaskId::none);
  CHECK(read->updates.front().examples == 7);
}

TEST_CASE("names of kept files are told from others") {
  CHECK(description_name(12) == "round-000012.json");
  CHECK(round_of_kept("round-000012.json") == Round{12});
  CHECK(round_of_kept("round-1234567.json") == Round{1234567});
  CHECK(round_of_kept("round-000012-task-5-0123456789abcdef") == Round{12});
  CHECK(kept_reference_name(12, TaskId{5}) == "round-000012-task-5-reference");
  CHECK(round_of_kept("round-000012-task-5-reference") == Round{12});
  for (const char* const other : {"round-12.json", "round-000012.state", "round-", "round-x.json",
                                  "round-99999999999.json", "round-000012-task-/../x", "lock"})
    CHECK_FALSE(round_of_kept(other));
  CHECK(version_of_state("round-000012.state") == Version{12});
  CHECK(version_of_state("round-000000.carry") == Version{0});
  CHECK(version_of_state("round-000003.mean") == Version{3});
  for (const char* const other : {"round-000012.safetensors", "round-000012.delta", "round-.state"})
    CHECK_FALSE(version_of_state(other));
}

}  // namespace
}  // namespace fl::test
