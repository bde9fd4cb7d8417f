// SPDX-License-Identifier: Apache-2.0
// What happens to a mapping that somebody writes to while the disk is full. Only a file system that
// copies on write has such pages: tests/process/disk_test.py tries it on one.
#include "shared/base/io/written_mappings.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/base/limits.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

namespace fl::test {

TEST_CASE("a page that can be read is waited for, one that is missing or not watched is not") {
  constexpr std::size_t page = 4096;
  const ScratchFolder folder = ScratchFolder::make("mapping").value();
  const auto path = folder.path() / "index";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::ftruncate(file, 2 * page) == 0);
  void* const at = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(at != MAP_FAILED);
  char* const bytes = static_cast<char*>(at);
  bytes[0] = bytes[page] = 1;

  CHECK(!wait_for_written_page(bytes));  // Not watched.
  watch_written_mapping(at, 2 * page);
  CHECK(!a_written_page_waits());
  const TimePoint begin = Clock::now();
  bool waits = false;
  std::thread other([&] { waits = wait_for_written_page(bytes + page + 7); });
  while (!a_written_page_waits()) std::this_thread::yield();
  other.join();
  CHECK(waits);
  CHECK(Clock::now() - begin >= limits::full_disk_pause);
  CHECK(!a_written_page_waits());
  CHECK(!wait_for_written_page(bytes + 2 * page));

  REQUIRE(::ftruncate(file, page) == 0);
  CHECK(!wait_for_written_page(bytes + page));
  forget_written_mapping(at);
  CHECK(!wait_for_written_page(bytes));
  ::munmap(at, 2 * page);
  ::close(file);
}

}  // namespace fl::test
