// SPDX-License-Identifier: Apache-2.0
#include "shared/base/state_lock.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace fl::test {

namespace fs = std::filesystem;

TEST_CASE("a state folder that other users may use is refused, with what to do") {
  const TemporaryFolder folder;
  for (const mode_t mode : {0755U, 0770U, 0701U, 0722U, 0777U, 01777U}) {
    CAPTURE(mode);
    REQUIRE(::chmod(folder.path().c_str(), mode) == 0);
    const auto taken = StateLock::take(folder.path());
    REQUIRE(!taken);
    CHECK(taken.error().code() == Errc::conflict);
    CHECK(taken.error().message().find("chmod 700 " + folder.path().string()) != std::string::npos);
    CHECK(!fs::exists(folder / "lock"));
  }
  // The group may read it: backups.
  for (const mode_t mode : {0700U, 0750U}) {
    REQUIRE(::chmod(folder.path().c_str(), mode) == 0);
    CHECK(StateLock::take(folder.path()));
  }
}

TEST_CASE("a file system with fixed modes is refused with a remedy that works, or accepted") {
  StateFolder folder{.path = "/mnt/c/state", .mode = 0777, .owner = 1000, .user = 1000};
  folder.has_fixed_modes = true;
  const auto refused = judge_state_folder(folder);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::conflict);
  CHECK(refused.error().message().find("chmod does not help") != std::string::npos);
  CHECK(refused.error().message().find("--accept-fixed-modes") != std::string::npos);
  folder.accepts_fixed_modes = true;
  CHECK(judge_state_folder(folder));
  folder.owner = 0;  // All files may be root's.
  CHECK(judge_state_folder(folder));
  // Where chmod helps, the flag does not.
  folder.has_fixed_modes = false;
  CHECK(!judge_state_folder(folder));
  folder.owner = 1000;
  CHECK(!judge_state_folder(folder));
  folder.mode = 0700;
  CHECK(judge_state_folder(folder));
}

TEST_CASE("the kernel's own file systems are no place for a state") {
  for (const char* path : {"/proc", "/proc/self", "/sys"}) {
    CAPTURE(std::string(path));
    const auto refused = check_state_folder(path);
    REQUIRE(!refused);
    CHECK(refused.error().message().find("Choose a --state on a disk") != std::string::npos);
    const auto made = make_state_folder(posix_files(), fs::path(path) / "new/state");
    REQUIRE(!made);
    CHECK(made.error().message().find("the kernel shows itself there") != std::string::npos);
  }
  const TemporaryFolder folder;
  CHECK(make_state_folder(posix_files(), folder / "new/state"));
}

TEST_CASE("a state folder of another user is refused") {
  const auto taken = check_state_folder(::geteuid() == 0 ? "/nonesuch" : "/");
  REQUIRE(!taken);
  if (::geteuid() != 0) {
    CHECK(taken.error().message().find("belongs to the user 'root'") != std::string::npos);
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(::chown(folder.path().c_str(), 12345, 12345) == 0);
  const auto refused = StateLock::take(folder.path());
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::conflict);
  CHECK(refused.error().message().find("belongs to the user number 12345") != std::string::npos);
}

TEST_CASE("a lock that is a link is not followed") {
  const TemporaryFolder folder;
  fs::create_symlink(folder / "elsewhere", folder / "lock");
  CHECK(!StateLock::take(folder.path()));
  CHECK(!fs::exists(folder / "elsewhere"));
}

TEST_CASE("who removes or replaces the lock file does not let a second process in") {
  const TemporaryFolder folder;
  const auto held = StateLock::take(folder.path());
  REQUIRE(held);
  const auto is_refused = [&] {
    const auto second = StateLock::take(folder.path());
    return second.has_error() && second.error().code() == Errc::conflict &&
           second.error().message().find("another process uses") != std::string::npos;
  };
  CHECK(is_refused());
  fs::remove(folder / "lock");
  CHECK(is_refused());
  std::ofstream(folder / "new") << "";
  fs::rename(folder / "new", folder / "lock");
  CHECK(is_refused());
}

TEST_CASE("a lock of the file alone, as programs of before take it, counts") {
  const TemporaryFolder folder;
  const int file = ::open((folder / "lock").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(::flock(file, LOCK_EX | LOCK_NB) == 0);
  const auto second = StateLock::take(folder.path());
  REQUIRE(second.has_error());
  CHECK(second.error().code() == Errc::conflict);
  ::close(file);
  CHECK(StateLock::take(folder.path()));
}

TEST_CASE("a lock that was given up, or moved, can be taken again") {
  const TemporaryFolder folder;
  {
    auto held = StateLock::take(folder.path());
    REQUIRE(held);
    const StateLock moved(std::move(*held));
    CHECK(!StateLock::take(folder.path()));
  }
  CHECK(StateLock::take(folder.path()));
}

TEST_CASE("new files are for their user alone") {
  const mode_t before = ::umask(0022);
  keep_files_private();
  const TemporaryFolder folder;
  std::ofstream(folder / "plain") << "x";
  ::umask(before);
  const auto mode = fs::status(folder / "plain").permissions();
  CHECK(mode == (fs::perms::owner_read | fs::perms::owner_write));
}

}  // namespace fl::test
