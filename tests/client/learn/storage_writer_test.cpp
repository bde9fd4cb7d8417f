// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/storage_writer.hpp"

#include "client/learn/data/kept_bytes.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

namespace {

using fl::test::TemporaryFolder;

std::vector<std::byte> counted(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 7 % 251);
  return all;
}

}  // namespace

// Pieces of many sizes; limits at, below and above what comes, where it goes to the disk.
TEST_CASE("the same bytes come out of memory and of the disk, in whatever pieces they come") {
  const TemporaryFolder folder;
  const auto all = counted(3'000'007);
  for (const std::uint64_t memory :
       {std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{2'500'000}, std::uint64_t{3'000'006},
        std::uint64_t{3'000'007}, std::uint64_t{1} << 40}) {
    for (const std::size_t piece : {1013U, 1U << 20, 3'000'007U}) {
      CAPTURE(memory);
      CAPTURE(piece);
      fl::StorageWriter writer(memory, folder.path());
      for (std::size_t at = 0; at < all.size(); at += piece) {
        const auto some = std::span(all).subspan(at, std::min(piece, all.size() - at));
        REQUIRE(writer.append(some).has_value());
      }
      CHECK(writer.bytes() == all.size());
      CHECK(writer.is_on_disk() == (memory < all.size()));
      const fl::Storage storage = writer.finish().value();
      CHECK(std::ranges::equal(storage.bytes(), all));
    }
  }
  CHECK(std::filesystem::is_empty(folder.path()));  // The files have no names.
}

TEST_CASE("nothing is nothing, and a writer that moves takes its bytes along") {
  fl::StorageWriter writer(10);
  CHECK(writer.append(std::span<const std::byte>()).has_value());
  CHECK(writer.finish()->bytes().empty());
  for (const std::uint64_t memory : {1, 1000}) {
    fl::StorageWriter first(memory);
    REQUIRE(first.append(counted(100)).has_value());
    fl::StorageWriter second(std::move(first));
    REQUIRE(second.append(counted(50)).has_value());
    const auto storage = second.finish().value();
    CHECK(storage.bytes().size() == 150);
    CHECK(std::ranges::equal(storage.bytes().first(100), counted(100)));
  }
}

TEST_CASE("what is kept beside the inputs has a limit in all, whatever its pieces") {
  fl::KeptBytes kept(100);
  REQUIRE(kept.add(60).has_value());
  REQUIRE(kept.add(40).has_value());
  const auto refused = kept.add(1);
  REQUIRE(refused.has_error());
  CHECK(refused.error().code() == fl::Errc::too_large);
  CHECK(refused.error().message().find("more than 100 bytes of memory") != std::string::npos);
  CHECK(fl::KeptBytes(100).add(std::uint64_t{1} << 63).has_error());
  // A small --data-memory moves inputs to the disk, and refuses no labels.
  CHECK(fl::KeptBytes::beside(1).add(fl::data_memory_default()).has_value());
  CHECK(fl::KeptBytes::beside(1).add(fl::data_memory_default() + 1).has_error());
  const std::uint64_t more = 2 * fl::data_memory_default();
  CHECK(fl::KeptBytes::beside(more).add(more).has_value());
}

TEST_CASE(
    "a folder that is not there, and a file that can't grow, are errors that say what to do") {
  fl::StorageWriter lost(1, "/nonesuch/folder");
  const auto error = lost.append(counted(2));
  REQUIRE(error.has_error());
  CHECK(error.error().message().find("/nonesuch/folder") != std::string::npos);
  CHECK(error.error().message().find("TMPDIR") != std::string::npos);

  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  fl::StorageWriter full(1);
  const auto written = full.append(counted(3 << 20));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, ignored);
  REQUIRE(written.has_error());
  CHECK(written.error().message().find("write a temporary file") != std::string::npos);
  CHECK(written.error().message().find("--data-memory") != std::string::npos);
}
