// SPDX-License-Identifier: Apache-2.0
// A mapped file shows what is written to it, and a part that can't be read becomes an error in
// place of a signal.
#include "shared/base/io/file_mapping.hpp"

#include "shared/base/io/file.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace fl::test {
namespace {

constexpr std::size_t page = 4096;

std::string mapped_text(const FileMapping& mapping, std::size_t first, std::size_t count) {
  const Bytes part = mapping.bytes().subspan(first, count);
  return {reinterpret_cast<const char*>(part.data()), part.size()};
}

struct Mapped {
  ScratchFolder folder = ScratchFolder::make("mapping").value();
  std::filesystem::path path = folder.path() / "values";
  std::unique_ptr<File> file = posix_files().open(path, OpenMode::truncate).value();
  std::unique_ptr<FileMapping> mapping;

  explicit Mapped(std::size_t bytes) {
    file->reserve(bytes).value();
    mapping = file->map(bytes).value();
  }
};

TEST_CASE("a mapping shows what is written to its file later") {
  Mapped mapped(3 * page);
  CHECK(mapped.mapping->bytes().size() == 3 * page);
  CHECK(mapped_text(*mapped.mapping, 0, 2) == std::string(2, '\0'));
  mapped.file->write_at(page + 1, bytes_of(std::string_view("new"))).value();
  CHECK(mapped_text(*mapped.mapping, page + 1, 3) == "new");
  CHECK(mapped.mapping->check());
}

TEST_CASE("a file that is cut while it is mapped is an error, not a signal") {
  Mapped mapped(4 * page);
  Mapped other(page);
  const std::vector<char> ones(4 * page, '1');
  mapped.file->write_at(0, std::as_bytes(std::span(ones))).value();
  mapped.file->truncate(page).value();
  CHECK(mapped_text(*mapped.mapping, page - 1, 1) == "1");
  CHECK(mapped.mapping->check());  // Nothing that is missing was read yet.
  CHECK(mapped_text(*mapped.mapping, 2 * page + 5, 1) == std::string(1, '\0'));
  CHECK(mapped_text(*mapped.mapping, 3 * page, 1) == std::string(1, '\0'));
  REQUIRE_FALSE(mapped.mapping->check());
  CHECK(mapped.mapping->check().error().code() == Errc::io);
  CHECK(mapped.mapping->check().error().message().find(mapped.path.string()) != std::string::npos);
  CHECK(other.mapping->check());
}

TEST_CASE("threads that read missing parts at the same time all go on") {
  constexpr std::size_t pages = 64;
  Mapped mapped(pages * page);
  mapped.file->truncate(0).value();
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < 4; ++number) {
    threads.emplace_back([&mapped] {
      const Bytes all = mapped.mapping->bytes();
      CHECK(std::ranges::all_of(all, [](std::byte b) { return b == std::byte{0}; }));
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(mapped.mapping->check());
}

TEST_CASE("a process has a limited number of mappings, and an ended one makes room") {
  const ScratchFolder folder = ScratchFolder::make("mapping").value();
  const auto file = posix_files().open(folder.path() / "x", OpenMode::truncate).value();
  file->reserve(page).value();
  std::vector<std::unique_ptr<FileMapping>> mappings;
  for (;;) {
    auto next = file->map(page);
    if (!next) {
      CHECK(next.error().code() == Errc::unavailable);
      break;
    }
    mappings.push_back(std::move(*next));
    REQUIRE(mappings.size() <= FileMapping::mappings_max);
  }
  mappings.pop_back();
  CHECK(file->map(page));
}

}  // namespace
}  // namespace fl::test
