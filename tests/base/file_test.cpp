// SPDX-License-Identifier: Apache-2.0
// fl::Files on the operating system's disk and on the simulated one. Both keep the same contract;
// the simulated disk also loses exactly what the contract allows to be lost.
#include "shared/base/io/file.hpp"

#include "shared/base/io/scratch_folder.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/base/write_signals.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <set>

namespace fl::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("only a lock that is held means that another process uses the folder") {
  const Error held = why_not_locked(EWOULDBLOCK, "/state");
  CHECK(held.code() == Errc::conflict);
  CHECK(held.message().starts_with("another process uses /state"));
  const Error missing = why_not_locked(ENOLCK, "/state");
  CHECK(missing.code() == Errc::io);
  CHECK(missing.message().starts_with("can't lock /state/lock: No locks available"));
}

/// Runs `body(files, folder)` on both disks.
template <class Body>
void on_both_disks(Body body) {
  SUBCASE("posix") {
    const TemporaryFolder folder;
    body(posix_files(), folder.path());
  }
  SUBCASE("memory") {
    MemFiles files;
    REQUIRE(files.make_folder("/disk"));
    body(files, fs::path("/disk"));
  }
}

std::string content(Files& files, const fs::path& path) { return files.read_all(path).value(); }

void write(Files& files, const fs::path& path, std::string_view text, bool sync = true) {
  const auto file = files.open(path, OpenMode::truncate).value();
  file->write_at(0, bytes_of(text)).value();
  if (sync) file->sync().value();
}

}  // namespace

TEST_CASE("bytes read back at the offset where they were written, and gaps are zero") {
  on_both_disks([](Files& files, const fs::path& folder) {
    const auto file = files.open(folder / "a", OpenMode::create).value();
    REQUIRE(file->write_at(5, bytes_of("world")));
    REQUIRE(file->write_at(0, bytes_of("hi")));
    CHECK(file->size().value() == 10);
    std::string text(20, 'x');
    CHECK(file->read_at(0, std::as_writable_bytes(std::span(text))).value() == 10);
    CHECK(text.substr(0, 10) == std::string("hi\0\0\0world", 10));
    CHECK(file->read_at(10, std::as_writable_bytes(std::span(text))).value() == 0);
    CHECK(file->read_at(1000, std::as_writable_bytes(std::span(text))).value() == 0);
    file->start_writeback(0, 10);
    REQUIRE(file->sync());
    REQUIRE(file->truncate(7));
    CHECK(content(files, folder / "a") == std::string("hi\0\0\0wo", 7));
  });
}

TEST_CASE("parts are written one behind the other, however many there are") {
  on_both_disks([](Files& files, const fs::path& folder) {
    const auto file = files.open(folder / "a", OpenMode::create).value();
    // More than the kernel takes in one call, and empty ones between.
    std::string expected(3, '\0');
    std::vector<std::string> texts;
    for (int i = 0; i < 2500; ++i)
      texts.push_back(
          std::string(static_cast<std::size_t>(i % 4), static_cast<char>('a' + i % 26)));
    std::vector<Bytes> parts;
    for (const std::string& text : texts) {
      parts.push_back(bytes_of(text));
      expected += text;
    }
    REQUIRE(file->write_parts_at(3, parts));
    REQUIRE(file->write_parts_at(1'000'000, {}));
    CHECK(content(files, folder / "a") == expected);
  });
}

TEST_CASE("read_exactly() of a short file is corrupt") {
  on_both_disks([](Files& files, const fs::path& folder) {
    write(files, folder / "a", "12345");
    const auto file = files.open(folder / "a", OpenMode::read).value();
    std::string text(4, ' ');
    REQUIRE(file->read_exactly(1, std::as_writable_bytes(std::span(text))));
    CHECK(text == "2345");
    const auto beyond = file->read_exactly(2, std::as_writable_bytes(std::span(text)));
    REQUIRE(!beyond);
    CHECK(beyond.error().code() == Errc::corrupt);
  });
}

TEST_CASE("each open mode does what its name says") {
  on_both_disks([](Files& files, const fs::path& folder) {
    const fs::path path = folder / "a";
    CHECK(files.open(path, OpenMode::read).error().code() == Errc::not_found);
    CHECK(files.open(path, OpenMode::update).error().code() == Errc::not_found);
    CHECK(files.open(folder / "no" / "a", OpenMode::create).error().code() == Errc::not_found);
    CHECK(!files.exists(path));
    REQUIRE(files.open(path, OpenMode::create));
    CHECK(files.exists(path));
    write(files, path, "kept");
    REQUIRE(files.open(path, OpenMode::create));
    CHECK(content(files, path) == "kept");
    REQUIRE(files.open(path, OpenMode::update).value()->write_at(0, bytes_of("K")));
    CHECK(content(files, path) == "Kept");
    const auto reader = files.open(path, OpenMode::read).value();
    const auto refused = reader->write_at(0, bytes_of("x"));
    REQUIRE(!refused);
    CHECK(refused.error().code() == Errc::io);
    CHECK(refused.error().message().find(path.string()) != std::string::npos);
    REQUIRE(files.open(path, OpenMode::truncate));
    CHECK(content(files, path).empty());
    write(files, path, "old");
    const auto old = files.open(path, OpenMode::read).value();
    REQUIRE(files.open(path, OpenMode::fresh).value()->write_at(0, bytes_of("new one")));
    CHECK(content(files, path) == "new one");
    CHECK(old->size().value() == 3);
    CHECK(files.open(folder / "no" / "a", OpenMode::fresh).error().code() == Errc::not_found);
  });
}

TEST_CASE("a link that another user has put in place of a temporary file is not written through") {
  const TemporaryFolder folder;
  const fs::path precious = folder / "precious";
  const fs::path ready = folder / "ready.json";
  write(posix_files(), precious, "precious");
  fs::create_symlink(precious, folder / "ready.json.tmp");
  REQUIRE(posix_files().write_atomically(ready, bytes_of("ready")));
  CHECK(content(posix_files(), precious) == "precious");
  CHECK(content(posix_files(), ready) == "ready");
  CHECK(!fs::is_symlink(ready));
}

TEST_CASE("list() is sorted, rename() replaces, remove() is idempotent") {
  on_both_disks([](Files& files, const fs::path& folder) {
    write(files, folder / "b", "B");
    write(files, folder / "a", "A");
    REQUIRE(files.make_folder(folder / "deep" / "deeper"));
    REQUIRE(files.make_folder(folder / "deep" / "deeper"));
    write(files, folder / "deep" / "deeper" / "c", "C");
    CHECK(files.list(folder).value() == std::vector<std::string>{"a", "b"});
    CHECK(files.list(folder / "nowhere").error().code() == Errc::not_found);
    REQUIRE(files.rename(folder / "a", folder / "b"));
    CHECK(files.list(folder).value() == std::vector<std::string>{"b"});
    CHECK(content(files, folder / "b") == "A");
    CHECK(files.rename(folder / "a", folder / "b").error().code() == Errc::not_found);
    REQUIRE(files.remove(folder / "b"));
    REQUIRE(files.remove(folder / "b"));
    REQUIRE(files.sync_folder(folder));
    CHECK(files.sync_folder(folder / "nowhere").error().code() == Errc::not_found);
    CHECK(!files.make_folder(folder / "deep" / "deeper" / "c" / "d"));
  });
}

TEST_CASE("whole files are written atomically, and read up to a limit") {
  on_both_disks([](Files& files, const fs::path& folder) {
    REQUIRE(files.write_atomically(folder / "a", bytes_of("first")));
    REQUIRE(files.write_atomically(folder / "a", bytes_of("second")));
    CHECK(files.list(folder).value() == std::vector<std::string>{"a"});
    CHECK(content(files, folder / "a") == "second");
    CHECK(files.read_all(folder / "a", 6).value() == "second");
    CHECK(files.read_all(folder / "a", 5).error().code() == Errc::too_large);
    CHECK(files.read_all(folder / "b").error().code() == Errc::not_found);
    CHECK(!files.write_atomically(folder / "nowhere" / "a", bytes_of("x")));
  });
}

TEST_CASE("posix files are accessible to the owner only and closed in child programs") {
  const TemporaryFolder folder;
  const mode_t old_mask = ::umask(0);
  REQUIRE(posix_files().make_folder(folder / "f" / "g"));
  const auto file = posix_files().open(folder / "f" / "g" / "a", OpenMode::create).value();
  ::umask(old_mask);
  const auto bits = [](const fs::path& path) { return fs::status(path).permissions(); };
  CHECK(bits(folder / "f") == fs::perms::owner_all);
  CHECK(bits(folder / "f" / "g") == fs::perms::owner_all);
  CHECK(bits(folder / "f" / "g" / "a") == (fs::perms::owner_read | fs::perms::owner_write));
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone) != folder / "f" / "g" / "a") continue;
    CHECK((::fcntl(std::stoi(entry.path().filename().string()), F_GETFD) & FD_CLOEXEC) != 0);
    return;
  }
  FAIL("the open file is not among this process's descriptors");
}

TEST_CASE("what is no file on a disk is refused at once, and nobody is waited for") {
  const TemporaryFolder folder;
  const fs::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const OpenMode mode :
       {OpenMode::read, OpenMode::update, OpenMode::create, OpenMode::truncate}) {
    CHECK_FALSE(posix_files().open(pipe, mode));
    CHECK_FALSE(posix_files().open("/dev/zero", mode));
  }
  const auto refused = posix_files().read_all(pipe);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message() == pipe.string() + " is a pipe (FIFO), not a file: give a file");
  // A fresh file takes its place.
  CHECK(posix_files().open(pipe, OpenMode::fresh));
  CHECK(fs::is_regular_file(pipe));
}

TEST_CASE("folders for temporary work are new, private and gone at the end") {
  const TemporaryFolder folder;
  fs::path path;
  {
    const auto one = ScratchFolder::make("work", folder.path()).value();
    const auto other = ScratchFolder::make("work", folder.path()).value();
    path = one.path();
    CHECK(path != other.path());
    CHECK(path.parent_path() == folder.path());
    CHECK((fs::status(path).permissions() & fs::perms::all) == fs::perms::owner_all);
    write(posix_files(), path / "a", "x");
  }
  CHECK(fs::is_empty(folder.path()));
  CHECK_FALSE(ScratchFolder::make("work", folder / "missing"));
}

TEST_CASE("a posix write that the kernel cuts short is continued, and its error is reported") {
  // RLIMIT_FSIZE: the first pwritev writes what fits, the second fails with EFBIG.
  const TemporaryFolder folder;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_DFL);
  ignore_write_signals();
  rlimit small = before;
  small.rlim_cur = 1000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto file = posix_files().open(folder / "a", OpenMode::create).value();
  const auto written = file->write_at(0, bytes_of(std::string(1500, 'x')));
  const auto parted = posix_files().open(folder / "b", OpenMode::create).value();
  const std::string part(300, 'y');
  const std::vector<Bytes> parts(5, bytes_of(part));
  const auto in_parts = parted->write_parts_at(0, parts);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, old_handler);
  REQUIRE(!in_parts);
  CHECK(in_parts.error().code() == Errc::no_space);
  CHECK(content(posix_files(), folder / "b") == std::string(1000, 'y'));
  REQUIRE(!written);
  CHECK(written.error().code() == Errc::no_space);
  CHECK(file->size().value() == 1000);
  CHECK(written.error().message().find("files of up to 1000 bytes (ulimit -f") !=
        std::string::npos);
  CHECK(file_limit_text(ENOSPC).empty());
}

TEST_CASE("memory: only synced bytes and names survive every crash") {
  std::set<std::string> contents;
  bool name_was_lost = false;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    MemFiles files;
    write(files, "/a", std::string(3 * MemFiles::page_bytes, 'o'));
    REQUIRE(files.sync_folder("/"));
    const auto file = files.open("/a", OpenMode::update).value();
    REQUIRE(file->write_at(0, bytes_of(std::string(3 * MemFiles::page_bytes, 'n'))));
    write(files, "/b", "synced, but its name isn't");
    files.crash(seed);
    const std::string after = content(files, "/a");
    REQUIRE(after.size() == 3 * MemFiles::page_bytes);
    std::string pages;
    for (std::size_t at = 0; at < 3; ++at) {
      const char first = after[at * MemFiles::page_bytes];
      CHECK(after.substr(at * MemFiles::page_bytes, MemFiles::page_bytes) ==
            std::string(MemFiles::page_bytes, first));
      pages += first;
    }
    contents.insert(pages);
    name_was_lost |= !files.exists("/b");
    CHECK(file->size().error().code() == Errc::io);
  }
  CHECK(contents.size() == 8);  // Each subset of the three pages occurs.
  CHECK(name_was_lost);
}

TEST_CASE("memory: a rename or removal may be lost until the folder is synced") {
  std::set<std::vector<std::string>> listings;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    MemFiles files;
    write(files, "/a", "A");
    write(files, "/c", "C");
    REQUIRE(files.sync_folder("/"));
    REQUIRE(files.rename("/a", "/b"));
    REQUIRE(files.remove("/c"));
    if (seed >= 32) REQUIRE(files.sync_folder("/"));
    files.crash(seed);
    if (seed >= 32) CHECK(files.list("/").value() == std::vector<std::string>{"b"});
    if (seed < 32) listings.insert(files.list("/").value());
  }
  CHECK(listings == std::set<std::vector<std::string>>{{"a"}, {"b"}, {"a", "c"}, {"b", "c"}});
}

TEST_CASE("memory: the same seeds give the same disk") {
  const auto life = [](std::uint64_t seed) {
    MemFiles files;
    for (int i = 0; i < 20; ++i) {
      write(files, "/f" + std::to_string(i), std::string(10'000, static_cast<char>('a' + i)),
            i % 3);
      if (i % 4 == 0) files.sync_folder("/").value();
    }
    files.crash(seed);
    std::string all;
    for (const auto& name : files.list("/").value()) all += name + content(files, "/" + name);
    return all;
  };
  std::set<std::string> distinct;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CHECK(life(seed) == life(seed));
    distinct.insert(life(seed));
  }
  CHECK(distinct.size() > 3);
}

TEST_CASE("memory: a lost sync fails once, and its bytes never reach the disk") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    MemFiles files;
    const auto file = files.open("/a", OpenMode::create).value();
    REQUIRE(file->write_at(0, bytes_of("old")));
    REQUIRE(file->sync());
    REQUIRE(files.sync_folder("/"));
    REQUIRE(file->write_at(0, bytes_of("new")));
    files.fail_at(1, Fault::sync_lost);
    CHECK(file->sync().error().code() == Errc::io);
    CHECK(file->sync());  // As on Linux, the second try succeeds.
    CHECK(content(files, "/a") == "new");
    files.crash(seed);
    CHECK(content(files, "/a") == "old");
  }
}

TEST_CASE("memory: a failing write writes its first half; the next write works") {
  MemFiles files;
  const auto file = files.open("/a", OpenMode::create).value();
  files.fail_at(2);
  CHECK(file->size());
  CHECK(file->write_at(0, bytes_of("12345678")).error().code() == Errc::io);
  CHECK(content(files, "/a") == "1234");
  CHECK(file->write_at(0, bytes_of("12345678")));
}

TEST_CASE("memory: a full disk takes what fits, and works again when there is space") {
  MemFiles files;
  const auto file = files.open("/a", OpenMode::create).value();
  files.space_limit(6);
  CHECK(file->write_at(0, bytes_of("12345678")).error().code() == Errc::no_space);
  CHECK(files.bytes_used() == 6);
  CHECK(file->write_at(0, bytes_of("abcdef")));  // Overwriting needs no space.
  files.space_limit(MemFiles::no_limit);
  CHECK(file->write_at(0, bytes_of("12345678")));
}

TEST_CASE("write_atomically() leaves the old or the new bytes, whenever the power fails") {
  bool finished = false;
  int crashes = 0;
  for (std::uint64_t n = 1; !finished; ++n) {
    REQUIRE(n < 20);
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      MemFiles files;
      const std::string old_text(9000, 'o');
      const std::string new_text(12'000, 'n');
      REQUIRE(files.write_atomically("/a", bytes_of(old_text)));
      files.cut_power_at(n);
      finished = files.write_atomically("/a", bytes_of(new_text)).has_value();
      files.crash(seed);
      const std::string after = content(files, "/a");
      CHECK((after == new_text || (!finished && after == old_text)));
      if (!finished) ++crashes;
    }
  }
  CHECK(crashes == 5 * 16);  // Open, write, sync, rename, sync_folder.
}

TEST_CASE(
    "write_atomically() leaves the old bytes if an operation fails, and works when tried again") {
  for (std::uint64_t n = 1; n <= 4; ++n) {
    MemFiles files;
    REQUIRE(files.write_atomically("/a", bytes_of("old")));
    files.fail_at(n);
    CHECK(!files.write_atomically("/a", bytes_of("new")));
    CHECK(content(files, "/a") == "old");
    CHECK(files.write_atomically("/a", bytes_of("new")));
    CHECK(content(files, "/a") == "new");
  }
}

}  // namespace fl::test
