// SPDX-License-Identifier: Apache-2.0
// The checks of the machine that both `doctor` commands make: what is wrong with a disk, a clock or
// a certificate, and what is said then.
#include "shared/base/doctor.hpp"

#include "shared/base/async/asio.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace {

bool has_locks = true;          // Whether the disk under test has locks.
std::function<void()> on_sync;  // Called by each sync.

}  // namespace

// In place of the C library's, for the whole program.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // There is a type of this name, too.
extern "C" int flock(int file, int operation) noexcept {
  return has_locks ? static_cast<int>(::syscall(SYS_flock, file, operation)) : 0;
}
#pragma GCC diagnostic pop
extern "C" int fdatasync(int file) {
  if (on_sync) on_sync();
  return static_cast<int>(::syscall(SYS_fdatasync, file));
}

namespace fl::test {
namespace {

using namespace std::chrono_literals;
using Verdict = DoctorLine::Verdict;

DoctorLine line_of(const DoctorLines& lines, const std::string& subject) {
  const auto found = std::ranges::find(lines, subject, &DoctorLine::subject);
  REQUIRE(found != lines.end());
  return *found;
}

DoctorLines look_at_disk(const std::filesystem::path& folder, double bytes_needed) {
  DoctorLines lines;
  check_disk(folder, bytes_needed, lines);
  return lines;
}

bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("a disk with too little room fails, and with just enough is warned of") {
  const TemporaryFolder folder;
  const auto free = static_cast<double>(std::filesystem::space(folder.path()).available);
  const auto line = [&folder](double needed) {
    return line_of(look_at_disk(folder.path(), needed), "disk space");
  };
  CHECK(line(1).verdict == Verdict::ok);
  const DoctorLine little = line(free * 0.75);
  CHECK(little.verdict == Verdict::warn);
  CHECK(has(little.advice, "and twice that is better"));
  const DoctorLine none = line(free * 4);
  CHECK(none.verdict == Verdict::fail);
  CHECK(has(none.text, "GB are free at"));
  CHECK(has(none.advice, "make room"));
  DoctorLines lines = look_at_disk(folder / "missing", 1);
  CHECK(line_of(lines, "disk space").verdict == Verdict::fail);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("a link that others have put in the folder is not followed, and stays") {
  const TemporaryFolder shared;
  const auto victim = shared / "victim";
  std::ofstream(victim) << "mine";
  const auto link = shared / fmt::format("doctor-{}.tmp", ::getpid());
  std::filesystem::create_symlink(victim, link);
  DoctorLines lines;
  check_disk(shared.path(), 0, lines);
  std::string text;
  std::ifstream(victim) >> text;
  CHECK(text == "mine");
  CHECK(std::filesystem::is_symlink(link));
}

TEST_CASE("a folder that can't be written to fails") {
  const DoctorLines lines = look_at_disk("/proc/self", 0);  // Root may not, either.
  const DoctorLine sync = line_of(lines, "disk sync");
  CHECK(sync.verdict == Verdict::fail);
  CHECK(has(sync.advice, "that this user may write to"));
  CHECK(line_of(lines, "disk locks").verdict == Verdict::fail);
  CHECK(doctor_exit_code(lines) == 1);
}

TEST_CASE("a disk whose locks keep nobody out fails") {
  const TemporaryFolder folder;
  CHECK(line_of(look_at_disk(folder.path(), 1), "disk locks").verdict == Verdict::ok);
  has_locks = false;
  const DoctorLine line = line_of(look_at_disk(folder.path(), 1), "disk locks");
  has_locks = true;
  CHECK(line.verdict == Verdict::fail);
  CHECK(has(line.text, "two programs can lock the same file"));
  CHECK(has(line.advice, "use a local disk"));
}

TEST_CASE("a disk whose syncs are slow is warned of") {
  SimulatedTime time;
  const TemporaryFolder folder;
  const auto sync_line = [&](Duration takes) {
    on_sync = [&time, takes] {
      net::io_context io;
      net::co_spawn(io, sleep_for(takes), rethrow);
      while (time.step(io)) continue;
    };
    const DoctorLine line = line_of(look_at_disk(folder.path(), 1), "disk sync");
    on_sync = {};
    return line;
  };
  CHECK(sync_line(5ms).verdict == Verdict::ok);
  CHECK(sync_line(5ms).text == "a sync takes 5 ms");
  const DoctorLine slow = sync_line(limits::slow_sync + 1ms);
  CHECK(slow.verdict == Verdict::warn);
  CHECK(has(slow.advice, "best an SSD"));
}

TEST_CASE("a clock that is off the server's is warned of, and fails where certificates would") {
  const SimulatedTime time;
  const auto line = [](double off) {
    DoctorLines lines;
    check_clock(Clock::unix_seconds() + off, lines);
    return line_of(lines, "clock");
  };
  CHECK(line(0).verdict == Verdict::ok);
  CHECK(has(line(-4).text, "4 s off the server's"));
  CHECK(line(-4).verdict == Verdict::ok);
  for (const double off : {6.0, -6.0, 299.0, -299.0}) {
    CHECK(line(off).verdict == Verdict::warn);
    CHECK(has(line(off).advice, "set the clock that is wrong"));
  }
  for (const double off : {301.0, -301.0, 1e6}) CHECK(line(off).verdict == Verdict::fail);
}

TEST_CASE("a certificate that ends soon is warned of, and one that has ended fails") {
  const SimulatedTime time(1.7e9);  // 14 November 2023.
  const auto line = [](double days) {
    DoctorLines lines;
    check_certificate_end("certificate", Clock::unix_seconds() + days * 24 * 3600,
                          "start the client", lines);
    return line_of(lines, "certificate");
  };
  CHECK(line(60).verdict == Verdict::ok);
  CHECK(line(60).text == "valid until 2024-01-13, 60 more days");
  CHECK(line(60).advice.empty());
  const DoctorLine soon = line(limits::certificate_days_min - 0.5);
  CHECK(soon.verdict == Verdict::warn);
  CHECK(soon.advice == "start the client");
  const DoctorLine over = line(-0.5);
  CHECK(over.verdict == Verdict::fail);
  CHECK(over.text == "ended on 2023-11-14");
  CHECK(over.advice == "start the client");
}

}  // namespace fl::test
