// SPDX-License-Identifier: Apache-2.0
// The spool: the files of uploads on the server's disk, and the task of each.
#include "server/round/spool.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

using Names = std::vector<std::string>;

struct SpoolWorld {
  MemFiles disk;
  Spool spool{disk, "/spool"};

  SpoolWorld() { REQUIRE(spool.prepare()); }

  std::shared_ptr<server::Upload> open(std::int64_t task, std::string_view bytes) {
    auto upload = spool.open(TaskId{task}, bytes.size(), Digest::of(bytes_of(bytes)));
    REQUIRE(upload);
    return *upload;
  }
  [[nodiscard]] Names files() { return disk.list("/spool").value(); }
};

TEST_CASE("other bytes for the same task replace an unfinished upload") {
  SpoolWorld world;
  for (const std::string_view bytes : {"first", "other", "third"}) {
    const auto upload = world.open(1, bytes);
    REQUIRE(upload->append(bytes_of(bytes.substr(0, 2))));
    CHECK(world.files() == Names{upload->file_name()});
  }
  // Equal bytes resume where they stopped. The uploads of other tasks stay, whatever the task's
  // number.
  const auto twelfth = world.open(12, "first");
  const auto again = world.open(1, "third");
  CHECK(again->next_offset() == 2);
  CHECK(world.files() == Names{again->file_name(), twelfth->file_name()});
}

TEST_CASE("an upload that is announced with another digest again and again leaves one file") {
  SpoolWorld world;
  for (const std::string_view bytes : {"first", "other", "third"}) {
    const auto upload = world.open(1, bytes);
    REQUIRE(upload->append(bytes_of(bytes.substr(0, 2))));
  }
  CHECK(world.files().size() == 1);
  CHECK(world.open(1, "third")->next_offset() == 2);
}

TEST_CASE("an upload that is being written or is complete is not replaced") {
  SpoolWorld world;
  const Digest other = Digest::of(bytes_of("other"));
  auto upload = world.open(1, "first");
  CHECK(world.spool.open(TaskId{1}, 5, other).error().code() == Errc::unavailable);
  REQUIRE(upload->append(bytes_of("first")));
  REQUIRE(world.spool.finish(*upload));
  const std::string name = upload->file_name();
  upload.reset();
  CHECK(world.spool.open(TaskId{1}, 5, other).error().code() == Errc::unavailable);
  CHECK(world.files() == Names{name});
  // Until it is refused.
  upload = world.open(1, "first");
  CHECK(upload->is_complete());
  REQUIRE(world.spool.discard(*upload));
  CHECK(world.spool.open(TaskId{1}, 5, other));
}

TEST_CASE("an upload whose file was removed while it came is not whole") {
  SpoolWorld world;
  const auto first = world.open(1, "first");
  const auto second = world.open(1, "first");  // Another session of the same client.
  REQUIRE(second->append(bytes_of("first")));
  REQUIRE(world.spool.discard(*first));
  const auto third = world.open(1, "first");  // It has a new file of the same name.
  CHECK(third->next_offset() == 0);
  CHECK(world.spool.finish(*second).error().code() == Errc::unavailable);
  REQUIRE(world.spool.discard(*second));  // The third one's file stays.
  REQUIRE(third->append(bytes_of("first")));
  CHECK(world.spool.finish(*third));
}

TEST_CASE("an upload with a wrong digest is corrupt and begins again") {
  SpoolWorld world;
  {
    const auto upload = world.open(1, "first");
    REQUIRE(upload->append(bytes_of("fArst")));
    CHECK(world.spool.finish(*upload).error().code() == Errc::corrupt);
    CHECK(upload->differs());
  }
  CHECK(world.open(1, "other")->next_offset() == 0);
}

}  // namespace
}  // namespace fl::test
