// SPDX-License-Identifier: Apache-2.0
// The references of delta codecs: what a delta adds up to, and which files are kept.
#include "server/versions/delta_references.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

using Names = std::vector<std::string>;

struct References {
  MemFiles disk;
  DeltaReferences references{disk, "/references", 4 * sizeof(float)};

  explicit References(DeltaReferences::Tasks newest = {}) {
    REQUIRE(references.prepare(std::move(newest)));
  }

  /// Returns the update that results from this delta of `task`.
  std::vector<float> add(std::int64_t task, std::int64_t reference, std::vector<float> delta) {
    const auto keep = references.keep(TaskId{task}, TaskId{reference}).value();
    // In two parts, as blocks arrive.
    REQUIRE(keep(0, std::span(delta).first(3)));
    REQUIRE(keep(3, std::span(delta).subspan(3)));
    return delta;
  }
  [[nodiscard]] Names files() { return disk.list("/references").value(); }
};

TEST_CASE("a client's delta is added to its last accepted update") {
  References world;
  auto& references = world.references;
  CHECK(references.of("a") == TaskId{0});
  CHECK(world.add(1, 0, {1, 2, 3, 4}) == std::vector<float>{1, 2, 3, 4});
  CHECK(references.of("a") == TaskId{0});  // The task's round is not recorded yet.
  REQUIRE(references.sync({{"a", TaskId{1}}}));
  REQUIRE(references.advance({{"a", TaskId{1}}}));
  CHECK(references.of("a") == TaskId{1});
  CHECK(references.of("b") == TaskId{0});
  const std::vector<float> second{2, 2, 2, 3};
  CHECK(world.add(7, 1, {1, 0, -1, -1}) == second);
  // Adding the delta again, as after a restart, gives an equal update.
  CHECK(world.add(7, 1, {1, 0, -1, -1}) == second);
  CHECK(world.files() == Names{"1", "7"});
  REQUIRE(references.advance({{"a", TaskId{7}}}));
  CHECK(world.files() == Names{"7"});
}

TEST_CASE("in a replay references are read where they lie, and nothing is written") {
  References world;
  world.add(1, 0, {1, 2, 3, 4});
  const DeltaReferences replay(world.disk, {{TaskId{1}, "/references/1"}});
  const auto changes = world.disk.operations().changes;
  const auto keep = replay.keep(TaskId{7}, TaskId{1}).value();
  std::vector<float> delta{1, 0, -1, -1};
  REQUIRE(keep(0, delta));
  CHECK(delta == std::vector<float>{2, 2, 2, 3});
  CHECK(replay.sync({{"a", TaskId{7}}}));
  CHECK(world.disk.operations().changes == changes);
  CHECK(replay.keep(TaskId{8}, TaskId{2}).error().code() == Errc::not_found);
}

TEST_CASE("a refused update leaves no file, and an unreadable reference is forgotten") {
  References world;
  world.add(1, 0, {1, 2, 3, 4});
  REQUIRE(world.references.advance({{"a", TaskId{1}}}));
  world.add(2, 1, {1, 1, 1, 1});
  REQUIRE(world.references.refuse("a", TaskId{2}, false));
  CHECK(world.files() == Names{"1"});
  CHECK(world.references.of("a") == TaskId{1});
  world.add(3, 1, {1, 1, 1, 1});
  REQUIRE(world.references.refuse("a", TaskId{3}, true));
  CHECK(world.references.of("a") == TaskId{0});
}

TEST_CASE("at its start the server keeps complete files of the newest tasks and removes others") {
  MemFiles disk;
  REQUIRE(disk.make_folder("/references"));
  const std::vector<std::byte> whole(16);
  for (const char* name : {"1", "2", "4"})
    REQUIRE(disk.write_atomically(std::filesystem::path("/references") / name, whole));
  REQUIRE(disk.write_atomically("/references/3", std::span(whole).first(15)));
  DeltaReferences references(disk, "/references", 16);
  REQUIRE(
      references.prepare({{"a", TaskId{1}}, {"b", TaskId{2}}, {"c", TaskId{3}}, {"d", TaskId{5}}}));
  CHECK(references.of("a") == TaskId{1});
  CHECK(references.of("b") == TaskId{2});
  CHECK(references.of("c") == TaskId{0});  // Cut off.
  CHECK(references.of("d") == TaskId{0});  // Missing.
  CHECK(disk.list("/references").value() == Names{"1", "2"});
}

TEST_CASE("what is applied again, or taken back halfway, writes nothing: the disk may be full") {
  References world;
  world.add(1, 0, {1, 2, 3, 4});
  REQUIRE(world.references.advance({{"a", TaskId{1}}}));
  std::vector<float> delta{1, 1, 1, 1};
  const auto keep = world.references.keep(TaskId{2}, TaskId{1}).value();
  REQUIRE(keep(0, std::span(delta).first(3)));
  world.disk.copy_on_write(true);
  world.disk.space_limit(world.disk.bytes_used());
  // The second block was bad, so the first is taken back.
  std::vector<float> again{1, 1, 1};
  REQUIRE(keep(0, again));
  CHECK(again == std::vector<float>{2, 3, 4});
  std::vector<float> last{1};
  CHECK(keep(3, last).error().code() == Errc::no_space);
  std::vector<float> other{0, 0, 1, 1};
  const auto apply = world.references.apply(TaskId{1}).value();
  REQUIRE(apply(0, other));
  CHECK(other == std::vector<float>{1, 2, 4, 5});
}

TEST_CASE("a failed sync is fatal, even on a full disk") {
  References world;
  world.add(1, 0, {1, 2, 3, 4});
  world.disk.fail_at(1, Fault::sync_lost);
  const auto synced = world.references.sync({{"a", TaskId{1}}});
  REQUIRE(synced.has_error());
  CHECK(synced.error().code() == Errc::io);
}

}  // namespace
}  // namespace fl::test
