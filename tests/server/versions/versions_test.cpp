// SPDX-License-Identifier: Apache-2.0
// Which model versions are kept, and what a client downloads.
#include "server/versions/versions.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

struct VersionsWorld {
  MemFiles files;
  Layout layout = Layout::make({{"w", {100, 100}}}).value();
  Versions versions{files, "/models", layout};
  std::map<Round, CheckpointRecord> records;

  /// Makes a version with a coded step of `step_bytes`, or without one if that is 0.
  CheckpointRecord make(Version version, std::size_t step_bytes = 0) {
    auto writer = CheckpointWriter::create(files, "/models", version, layout, {}).value();
    writer.append(std::vector<float>(layout.elements(), static_cast<float>(version))).value();
    CheckpointRecord record = writer.finish().value();
    if (step_bytes > 0) {
      record.delta_file = delta_name(version);
      record.delta_bytes = step_bytes;
      const std::vector<std::byte> step(step_bytes, std::byte{7});
      files.write_atomically("/models/" + record.delta_file, step).value();
    }
    records[version] = record;
    return record;
  }
  wire::Fetch fetch(Version version) const {
    wire::Fetch asked;
    asked.set_version(version);
    return asked;
  }
  wire::Fetch fetch_from(Version have, Version version) const {
    wire::Fetch asked = fetch(version);
    asked.set_have_base(true);
    asked.set_have_version(have);
    asked.set_have_digest(records.at(have).digest.raw());
    return asked;
  }
};

TEST_CASE("a client that has no version downloads the whole model") {
  VersionsWorld world;
  REQUIRE(world.versions.publish(world.make(0)));
  const auto download = world.versions.download(world.fetch(0)).value();
  CHECK(download.model.full());
  CHECK(download.model.bytes() == world.layout.bytes());
  CHECK(download.model.offset() == 0);
  CHECK(download.source.bytes() == world.layout.bytes());
  CHECK(world.versions.download(world.fetch(1)).error().code() == Errc::not_found);
}

TEST_CASE(
    "coded steps are sent if all of them exist from the client's version on and are shorter") {
  VersionsWorld world;
  REQUIRE(world.versions.publish(world.make(0)));
  for (const Version version : {1, 2, 3})
    REQUIRE(world.versions.publish(world.make(version, 1000)));
  const auto steps = world.versions.download(world.fetch_from(1, 3)).value();
  CHECK_FALSE(steps.model.full());
  REQUIRE(steps.model.deltas_size() == 2);
  CHECK(steps.model.deltas(0).version() == 2);
  CHECK(steps.model.bytes() == 2000);

  wire::Fetch stranger = world.fetch_from(1, 3);
  stranger.set_have_digest("sixteen bytes...");
  CHECK(world.versions.download(stranger).value().model.full());
  CHECK(world.versions.download(world.fetch_from(3, 3)).value().model.full());

  REQUIRE(
      world.versions.publish(world.make(4, world.layout.bytes())));  // As long as the whole model.
  const auto whole = world.versions.download(world.fetch_from(3, 4)).value();
  CHECK(whole.model.full());
  CHECK(whole.model.deltas_size() == 0);
  REQUIRE(world.versions.publish(world.make(5)));  // Without a coded step the chain is broken.
  REQUIRE(world.versions.publish(world.make(6, 1000)));
  CHECK(world.versions.download(world.fetch_from(4, 6)).value().model.full());
}

TEST_CASE("a broken download resumes if the bytes are the same, also after a server restart") {
  VersionsWorld world;
  REQUIRE(world.versions.publish(world.make(0)));
  const auto first = world.versions.download(world.fetch(0)).value();
  Versions restarted(world.files, "/models", world.layout);
  REQUIRE(restarted.open_all({world.records.at(0)}));
  wire::Fetch resume = world.fetch(0);
  resume.set_transfer(first.model.transfer());
  resume.set_offset(4000);
  CHECK(restarted.download(resume).value().model.offset() == 4000);
  resume.set_transfer(first.model.transfer() + 1);
  CHECK(restarted.download(resume).value().model.offset() == 0);
  resume.set_transfer(first.model.transfer());
  resume.set_offset(world.layout.bytes());
  CHECK(restarted.download(resume).value().model.offset() == 0);
}

TEST_CASE("a dropped version leaves no file, but a transfer in progress can finish") {
  VersionsWorld world;
  REQUIRE(world.versions.publish(world.make(0)));
  REQUIRE(world.versions.publish(world.make(1, 1000)));
  const auto under_way = world.versions.download(world.fetch(1)).value();
  REQUIRE(world.versions.drop(1));
  CHECK_FALSE(world.versions.contains(1));
  CHECK(world.versions.newest_number() == 0);
  CHECK(world.files.list("/models").value() == std::vector<std::string>{checkpoint_name(0)});
  CHECK(under_way.source.read(0, 100).has_value());
}

TEST_CASE("kept versions hold no file open; a download holds the one that it sends") {
  VersionsWorld world;
  for (const Version version : {0, 1, 2}) {
    REQUIRE(world.versions.publish(world.make(version, version == 0 ? 0 : 1000)));
    CHECK(world.files.open_files() == 0);
  }
  Versions restarted(world.files, "/models", world.layout);
  REQUIRE(restarted.open_all({world.records.at(0), world.records.at(1), world.records.at(2)}));
  CHECK(world.files.open_files() == 0);
  {
    const auto whole = world.versions.download(world.fetch(0)).value();
    CHECK(world.files.open_files() == 1);
    const auto again = world.versions.download(world.fetch(0)).value();
    CHECK(world.files.open_files() == 1);  // They share it.
    const auto steps = world.versions.download(world.fetch_from(0, 2)).value();
    CHECK(world.files.open_files() == 3);
  }
  CHECK(world.files.open_files() == 0);
}

TEST_CASE("a chain of more steps than files may be opened for is sent as the whole model") {
  VersionsWorld world;
  REQUIRE(world.versions.publish(world.make(0)));
  const auto last = static_cast<Version>(limits::coded_steps_max + 1);
  for (Version version = 1; version <= last; ++version)
    REQUIRE(world.versions.publish(world.make(version, 1)));
  CHECK(world.versions.download(world.fetch_from(0, last)).value().model.full());
  CHECK_FALSE(world.versions.download(world.fetch_from(1, last)).value().model.full());
}

TEST_CASE("the error for a missing checkpoint names the file and says what to do") {
  VersionsWorld world;
  const CheckpointRecord record = world.make(3);
  REQUIRE(world.files.remove("/models/" + record.file));
  const auto opened = world.versions.open_all({record});
  REQUIRE(!opened);
  CHECK(opened.error().message().find(record.file) != std::string::npos);
  CHECK(opened.error().message().find("--new-run") != std::string::npos);
}

}  // namespace
}  // namespace fl::test
