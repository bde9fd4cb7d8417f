// SPDX-License-Identifier: Apache-2.0
// The folder in which a client and a trainer program exchange tensors: it is private, it lies in
// memory if that has room, and nothing is left of it.
#include "client/learn/process/tensor_folder.hpp"

#include "tests/client/learn/temporary_state.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace fl::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("what a killed program has left in memory goes with any start of the same user") {
  const State memory;
  const State killed;
  const State living;
  const State next;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // A check below may end the test.
    auto left = TensorFolder::make(killed.path, memory.path).value();
    std::ofstream(left.path() / "weights") << "x";
    std::ofstream(killed.path / "made").flush();
    for (;;) pause();
  }
  for (int i = 0; i < 1000 && !fs::exists(killed.path / "made"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto folders = [&memory] {
    return std::distance(fs::directory_iterator(memory.path), fs::directory_iterator());
  };
  const auto used = TensorFolder::make(living.path, memory.path).value();
  std::ofstream(used.path() / "weights") << "x";
  CHECK(folders() == 2);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  // One that has no lock may be of an older release that runs; another user's has another name.
  const auto older = memory.path / fmt::format("tributary-{}-0123456789ab", geteuid());
  const auto other = memory.path / fmt::format("tributary-{}-0123456789ab", geteuid() + 1);
  for (const auto& path : {older, other}) {
    fs::create_directory(path);
    if (path == other) std::ofstream(path / "lock").flush();
  }
  const auto made = TensorFolder::make(next.path, memory.path).value();
  CHECK(folders() == 4);  // The killed one's is gone.
  CHECK(fs::exists(used.path() / "weights"));
  CHECK(fs::exists(older));
  CHECK(fs::exists(other));
  // One state is used twice: the second folder does without memory.
  const auto twice = TensorFolder::make(living.path, memory.path).value();
  CHECK(twice.path() == fs::canonical(living.path) / "trainer");
  CHECK(fs::exists(used.path() / "weights"));
}

TEST_CASE("a start waits while another one removes what a killed program has left of its folder") {
  const State memory;
  const State state;
  const fs::path folder = TensorFolder::make(state.path, memory.path).value().path();
  fs::create_directory(folder);
  std::ofstream(folder / "lock").flush();
  const int lock = open((folder / "lock").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(flock(lock, LOCK_EX) == 0);
  const std::jthread other([lock] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    close(lock);
  });
  const auto made = TensorFolder::make(state.path, memory.path).value();
  CHECK(made.path() == folder);
}

TEST_CASE("the folder of tensors is private, and is gone at the end") {
  const State state;
  fs::path folder;
  {
    auto made = TensorFolder::make(state.path, state.path).value();
    folder = made.path();
    CHECK((fs::status(folder).permissions() & fs::perms::all) == fs::perms::owner_all);
    std::ofstream(folder / "left") << "x";
    REQUIRE(made.make_room(1));
    CHECK(made.tensors() == folder);
    // More than any disk has.
    REQUIRE(made.make_room(std::uint64_t{1} << 62));
    CHECK(made.tensors() == fs::canonical(state.path) / "trainer");
    CHECK(fs::exists(made.tensors()));
  }
  CHECK_FALSE(fs::exists(folder));
  // A file that is no folder of ours is not touched.
  std::ofstream(folder) << "someone's";
  const auto other = TensorFolder::make(state.path, state.path);
  REQUIRE(other);
  CHECK(other->path() == fs::canonical(state.path) / "trainer");
  CHECK(fs::is_regular_file(folder));
}

}  // namespace
}  // namespace fl::test
