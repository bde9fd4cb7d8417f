// SPDX-License-Identifier: Apache-2.0
// Rounds whose updates were kept are made again: check() replays each of them. Here are the
// methods, power cuts at every change of the disk, and what was changed afterwards.
#include "server/round/kept_round.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/world/check_replays.hpp"
#include "tests/world/scenario.hpp"

#include <sqlite3.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace fl::test {

using namespace fl::server;
namespace {

WorldOptions keeping(std::string rounds, std::uint32_t trainers = 3) {
  WorldOptions options = calm(trainers);
  options.settings.keep_updates = std::move(rounds);
  options.settings.keep_checkpoints = 1;
  options.settings.rounds = 4;
  return options;
}

/// The cosines are those that the history has: the toy model is no larger than the sample that a
/// round takes. The norms are those that were measured when the updates came, if `is_plain`.
void check_directions(World& world, History& history, Round round, bool is_plain) {
  const auto replayed = replay_of(world, history, round);
  REQUIRE(replayed);
  const auto tasks = history.store->rounds().tasks(history.run.id, round).value();
  CHECK(replayed->updates.size() == static_cast<std::size_t>(std::ranges::count(
                                        tasks, TaskState::accepted, &TaskRecord::state)));
  for (const UpdateDirection& update : replayed->updates) {
    const auto task = std::ranges::find(tasks, update.task, &TaskRecord::id);
    REQUIRE(task != tasks.end());
    CHECK(update.client == task->client);
    if (is_plain) CHECK(update.norm == doctest::Approx(task->norm).epsilon(1e-6));
    CHECK(update.cosine);
    CHECK(update.cosine == task->cosine);
  }
}

TEST_CASE("a kept round is made again bit for bit, whatever the method") {
  struct Way {
    const char* strategy;
    const char* codec;
    const char* downlink = "none";
    const char* rule = "mean";
    const char* mode = "sync";
  };
  for (const Way& way :
       {Way{"fedavg", "ecuq:4"}, Way{"fedavg", "powersgd:2+ef"}, Way{"fedavg", "gradzip:1+ef"},
        Way{"fedavg", "countsketch:3x2000"}, Way{"fedavg", "topk:0.1+qsgd:8+ef"},
        Way{"fedavg", "delta+qsgd:8"}, Way{"fedadam:lr=0.1", "delta+topk:0.3", "qsgd:7", "median"},
        Way{"fedadam:lr=0.1", "qsgd:8", "qsgd:7"}, Way{"fedavgm:lr=0.5", "none"},
        Way{"fednova", "fp16"}, Way{"scaffold", "qsgd:8+ef"}, Way{"feddyn:alpha=0.5", "none"},
        Way{"fedavg:weight=uniform", "ecuq:4", "none", "median"},
        Way{"fedyogi:lr=0.02", "qsgd:8", "qsgd:64", "centered-clip:0.5"},
        Way{"fedavg", "none", "none", "nnm+krum:0"},
        Way{"fedavg", "qsgd:8", "none", "mean", "async:buffer=2"},
        Way{"fedadam:lr=0.1", "none", "none", "mean", "async:buffer=2,compensate=0.04"}}) {
    CAPTURE(std::string(way.strategy));
    CAPTURE(std::string(way.codec));
    CAPTURE(std::string(way.rule));
    CAPTURE(std::string(way.mode));
    WorldOptions options = keeping("2", 5);
    options.settings.strategy = way.strategy;
    options.settings.codec = way.codec;
    options.settings.downlink_codec = way.downlink;
    options.settings.aggregate = way.rule;
    options.settings.mode = way.mode;
    World world(options);
    REQUIRE(world.run());
    auto history = History::open(world);
    REQUIRE(history);
    CHECK(check_replays(world, *history));
    // Shared vectors count in the history's norm, and blocks that are added undecoded nearly so.
    const bool is_plain = std::string(way.codec) == "none" && std::string(way.strategy) != "feddyn";
    check_directions(world, *history, 4, is_plain);
  }
}

TEST_CASE("a power loss or a kill at any change of the disk loses no kept round") {
  WorldOptions options = keeping("2", 2);
  options.settings.strategy = "fedadam:lr=0.1";
  options.settings.downlink_codec = "qsgd:7";
  options.settings.rounds = 3;
  for (const bool is_power_loss : {true, false}) {
    options.settings.codec = is_power_loss ? "delta+qsgd:8" : "qsgd:8";
    const std::uint64_t n = die_at_each_change(options, is_power_loss, or_sanitized(1, 7));
    CHECK(n > 60);
  }
}

/// A world that has ended, with rounds 2 to 4 kept.
struct KeptRun {
  World world;
  std::optional<History> history;

  static WorldOptions usual() {
    WorldOptions options = keeping("3", 2);
    options.settings.strategy = "fedadam:lr=0.1";
    return options;
  }
  explicit KeptRun(const WorldOptions& options = usual()) : world(options) {
    REQUIRE(world.run());
    REQUIRE(check(world));
    auto opened = History::open(world);
    REQUIRE(opened);
    history = std::move(*opened);
  }
  void flip(const std::filesystem::path& path, std::uint64_t at) {
    const auto file = world.server_disk().open(path, OpenMode::update).value();
    std::byte one{};
    REQUIRE(file->read_exactly(at, MutableBytes(&one, 1)));
    one ^= std::byte{1};
    REQUIRE(file->write_at(at, Bytes(&one, 1)));
  }
  void sql(const std::string& statement) {
    REQUIRE(sqlite3_exec(history->store->raw(), statement.c_str(), nullptr, nullptr, nullptr) ==
            SQLITE_OK);
  }
  Result<ReplayedRound> replay(Round round) { return replay_of(world, *history, round); }
  KeptRound described(Round round) {
    return read_description(world.server_disk(), kept_folder, round).value();
  }
  /// The error names all of these.
  void refuses(Round round, Errc code, std::initializer_list<std::string> words) {
    const auto replayed = replay(round);
    REQUIRE_FALSE(replayed);
    CHECK(replayed.error().code() == code);
    CAPTURE(replayed.error().message());
    for (const std::string& word : words)
      CHECK(replayed.error().message().find(word) != std::string::npos);
  }
};

TEST_CASE("a changed or missing file of a kept round is named") {
  KeptRun kept;
  const KeptRound third = kept.described(3);
  REQUIRE(third.updates.size() == 2);
  REQUIRE(third.state.size() == 1);
  const auto update = kept_folder / third.updates[1].file;
  for (const std::uint64_t at : {std::uint64_t{0}, third.updates[1].bytes - 1}) {
    kept.flip(update, at);
    kept.refuses(3, Errc::corrupt, {"client-2", third.updates[1].file});
    kept.flip(update, at);
  }
  CHECK(kept.replay(3).value().is_same());
  kept.flip(update, third.updates[1].bytes);  // The spool's mark, behind the update.
  CHECK(kept.replay(3).value().is_same());

  const std::filesystem::path checkpoints = "/state/checkpoints";
  kept.flip(checkpoints / third.state[0].file, 8);
  kept.refuses(3, Errc::corrupt, {third.state[0].file});
  kept.flip(checkpoints / third.state[0].file, 8);
  const auto base = checkpoints / checkpoint_name(2);
  const std::uint64_t bytes = peek(kept.world.server_disk(), base).size();
  kept.flip(base, bytes - 1);
  kept.refuses(3, Errc::corrupt, {checkpoint_name(2)});
  kept.flip(base, bytes - 1);
  CHECK(kept.replay(3).value().is_same());

  kept.flip(kept_folder / description_name(4), 40);
  kept.refuses(4, Errc::corrupt, {description_name(4)});
  REQUIRE(kept.world.server_disk().remove(update));
  kept.refuses(3, Errc::not_found, {"client-2", third.updates[1].file});
  REQUIRE(kept.world.server_disk().remove(base));
  kept.refuses(1, Errc::not_found, {"round 1", "not kept", "3 rounds from 2 to 4"});
  kept.refuses(9, Errc::not_found, {"no round 9"});
}

TEST_CASE("what a kept delta refers to is kept, and named if it is changed or missing") {
  WorldOptions options = keeping("3", 2);
  options.settings.codec = "delta+qsgd:8";
  KeptRun kept(options);
  const KeptRound third = kept.described(3);
  REQUIRE(third.references.size() == 2);
  CHECK(kept.described(2).updates[1].task == third.updates[1].reference);
  const auto path = kept_folder / third.references[1].file;
  CHECK(third.references[1].bytes == kept.world.options().problem.layout.bytes());
  kept.flip(path, 5);
  kept.refuses(3, Errc::corrupt, {"what the update of client-2", third.references[1].file});
  CHECK(kept.replay(4).value().is_same());
  kept.flip(path, 5);
  CHECK(kept.replay(3).value().is_same());
  REQUIRE(kept.world.server_disk().remove(path));
  kept.refuses(3, Errc::not_found, {"what the update of client-2", third.references[1].file});
  // Nothing but each client's last update is left beside the kept ones.
  CHECK(kept.world.server_disk().list("/state/references").value().size() == 2);
}

TEST_CASE("what the history says of a kept update must be what it was made with") {
  KeptRun kept;
  kept.sql("UPDATE task SET examples = examples + 1 WHERE client = 'client-1' AND round = 2");
  kept.refuses(2, Errc::corrupt, {"client-1", description_name(2)});
  kept.sql("UPDATE task SET state = 'lost' WHERE client = 'client-1' AND round = 3");
  kept.refuses(3, Errc::corrupt, {"the history has 1", "has 2"});
  CHECK(kept.replay(4).value().is_same());
}

TEST_CASE("a model that is not what was recorded is told from it, with its first value") {
  KeptRun kept;
  const auto replayed = kept.replay(4);
  REQUIRE(replayed);
  CHECK(replayed->updates.size() == 2);
  CHECK(replayed->made ==
        kept.history->store->rounds().checkpoints(kept.history->run.id).value().back().digest);
  // Somebody has changed a value of the model, and its digest in the history.
  const auto path = std::filesystem::path("/state/checkpoints") / checkpoint_name(4);
  const Layout& layout = kept.world.options().problem.layout;
  const std::string file = peek(kept.world.server_disk(), path);
  const std::uint64_t begin = file.size() - layout.bytes();
  kept.flip(path, begin + 5 * sizeof(float));
  const std::string changed = peek(kept.world.server_disk(), path).substr(begin);
  const Digest digest = Digest::of(bytes_of(std::string_view(changed)));
  kept.sql(fmt::format("UPDATE checkpoint SET digest = '{}' WHERE version = 4", digest.hex()));
  const auto differs = kept.replay(4);
  REQUIRE(differs);
  CHECK_FALSE(differs->is_same());
  CHECK(differs->recorded == digest);
  CHECK(differs->made == replayed->made);
  CHECK(differs->difference.find(layout.describe(5)) == 0);
  CHECK(differs->closed_by == replayed->closed_by);
}

}  // namespace
}  // namespace fl::test
