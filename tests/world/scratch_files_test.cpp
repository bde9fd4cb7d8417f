// SPDX-License-Identifier: Apache-2.0
// fl-sim's files in memory. Two files may share bytes without a copy; each must still hold what was
// written to it, whatever happens to the other. Compares random operations with plain vectors.
#include "examples/sim/scratch_files.hpp"

#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace fl;
using namespace fl::sim;

namespace {

using Random = std::mt19937;

std::size_t draw(Random& random, std::size_t below) { return random() % below; }

/// A file and the bytes that it must hold.
struct Twin {
  std::unique_ptr<File> file;
  std::vector<std::byte> bytes;

  void write(std::size_t offset, Bytes from) {
    const std::vector<std::byte> copy(from.begin(),
                                      from.end());  // `from` may point into this file.
    REQUIRE(file->write_at(offset, from));
    if (offset + copy.size() > bytes.size()) bytes.resize(offset + copy.size());
    std::ranges::copy(copy, bytes.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  void check(Random& random) const {
    REQUIRE(*file->size() == bytes.size());
    const std::size_t begin = draw(random, bytes.size() + 1);
    const std::size_t count = draw(random, bytes.size() - begin + 1);
    std::vector<std::byte> there(count);
    REQUIRE(*file->read_at(begin, there) == count);
    const Bytes wanted = Bytes(bytes).subspan(begin, count);
    REQUIRE(std::ranges::equal(there, wanted));
    if (const Bytes seen = file->view(begin, count); !seen.empty())
      REQUIRE(std::ranges::equal(seen, wanted));
  }
};

std::unique_ptr<File> open(ScratchFiles& files, const std::string& name) {
  auto file = files.open("/nonesuch/" + name, OpenMode::truncate);
  REQUIRE(file);
  return std::move(*file);
}

std::vector<std::byte> noise(Random& random, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

}  // namespace

TEST_CASE("an update is shared without a copy, and keeps its bytes when its writer changes it") {
  ScratchFiles files;
  Random random(1);
  const auto update = noise(random, 100000);
  auto client = open(files, "update-0");
  REQUIRE(client->write_at(0, update));
  const auto server = open(files, "task-1-00");
  for (std::size_t at = 0; at < update.size(); at += 50000)
    REQUIRE(server->write_at(at, client->view(at, 50000)));
  const std::byte mark{7};
  REQUIRE(server->write_at(update.size(), Bytes(&mark, 1)));
  CHECK(server->view(0, update.size()).data() == client->view(0, update.size()).data());

  REQUIRE(client->write_at(10, Bytes(&mark, 1)));
  CHECK(std::ranges::equal(server->view(0, update.size()), update));
  CHECK(client->view(10, 1)[0] == mark);
  client.reset();
  CHECK(std::ranges::equal(server->view(0, update.size()), update));
  CHECK(server->view(update.size(), 1)[0] == mark);
  CHECK(server->view(update.size() - 1, 2)
            .empty());  // The mark does not follow the update in memory.
}

TEST_CASE("several threads may create, share and remove files at the same time") {
  ScratchFiles files;
  std::atomic<bool> is_over = false;
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<std::byte> bytes(8192);
      for (unsigned i = 0; !is_over; ++i) {
        // These bytes belong to no file, but their memory may be next to that of other files.
        auto file = files.open("/nonesuch/update-" + std::to_string(t), OpenMode::truncate).value();
        file->write_at(0, bytes).value();
        if (t % 2 == 0) continue;
        const auto copy =
            files.open("/nonesuch/task-" + std::to_string(t), OpenMode::truncate).value();
        copy->write_at(0, file->view(0, bytes.size())).value();
        file.reset();
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  is_over = true;
  threads.clear();
}

TEST_CASE("an upload is kept until it is removed, however large it is and the others are") {
  const fl::test::TemporaryFolder folder;
  const std::vector<std::byte> first(100, std::byte{7});
  const std::vector<std::byte> large(100 << 20, std::byte{9});
  ScratchFiles files;
  const auto write = [&](const char* name, Bytes bytes) {
    const auto file = files.open(folder.path() / name, OpenMode::truncate);
    REQUIRE(file);
    REQUIRE((*file)->write_at(0, bytes));
  };
  const auto check = [&](const char* name, Bytes bytes) {
    const auto again = files.open(folder.path() / name, OpenMode::read);
    REQUIRE(again);
    std::vector<std::byte> there(bytes.size());
    REQUIRE((*again)->read_exactly(0, there));
    // Many times faster than std::ranges::equal where nothing is optimised.
    CHECK(std::memcmp(there.data(), bytes.data(), bytes.size()) == 0);
  };
  write("task-1", first);
  for (const char* const name : {"task-2", "task-3", "task-4"}) write(name, large);
  write("task-5", first);
  for (const char* const name : {"task-1", "task-5"}) check(name, first);
  for (const char* const name : {"task-2", "task-3", "task-4"}) check(name, large);
  check("task-1", first);
  REQUIRE(files.remove(folder.path() / "task-4"));
  CHECK_FALSE(files.exists(folder.path() / "task-4"));
  CHECK(files.open(folder.path() / "task-4", OpenMode::read).has_error());
  write("task-4", first);
  check("task-4", first);
  for (const char* const name : {"task-1", "task-2", "task-3", "task-4", "task-5"})
    REQUIRE(files.remove(folder.path() / name));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("files that share their bytes hold what was written to them") {
  Random random(2);
  for (int round = 0; round < 20; ++round) {
    ScratchFiles files;
    std::array<Twin, 3> twins;
    for (std::size_t k = 0; k < twins.size(); ++k)
      twins[k].file = open(files, "update-" + std::to_string(k));
    for (int step = 0; step < 200; ++step) {
      Twin& to = twins[draw(random, twins.size())];
      const Twin& from = twins[draw(random, twins.size())];
      const std::size_t action = draw(random, 8);
      if (action == 0) {
        const std::size_t size = draw(random, to.bytes.size() + 1);
        REQUIRE(to.file->truncate(size));
        to.bytes.resize(size);
      } else if (action < 4) {
        // Leave no gap, because its contents would be undefined.
        const std::size_t offset = draw(random, to.bytes.size() + 1);
        to.write(offset, noise(random, draw(random, 3000)));
      } else if (&from != &to) {
        // Copy from the beginning or from the end, as uploads do, or from anywhere.
        const std::size_t size = std::min(to.bytes.size(), from.bytes.size());
        const std::size_t begin = action == 4 ? draw(random, size + 1) : action == 5 ? size : 0;
        const std::size_t count = draw(random, from.bytes.size() - begin + 1);
        if (const Bytes seen = from.file->view(begin, count); !seen.empty()) to.write(begin, seen);
      }
      if (to.bytes.size() > 60000) {
        REQUIRE(to.file->truncate(20000));
        to.bytes.resize(20000);
      }
      for (const Twin& twin : twins) twin.check(random);
    }
  }
}
