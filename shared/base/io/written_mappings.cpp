// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/written_mappings.hpp"

#include "shared/base/io/bus_signal.hpp"
#include "shared/base/limits.hpp"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace fl {

namespace {

constexpr std::string_view news =
    "paused, the disk is full: there is no room for a page of SQLite's file history.sqlite-shm; "
    "make room on the disk, or raise the quota\n";
constexpr std::int64_t between_news_s = 60;

/// A mapping as the signal's handler finds it, which may only use atomics.
struct WrittenMapping {
  std::atomic<bool> is_taken = false;
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> bytes = 0;  // 0: the slot is not in use.
};
std::array<WrittenMapping, written_mappings_max> written_mappings;
std::atomic<int> waiting = 0;
std::atomic<std::int64_t> last_news_s = -between_news_s;  // By the monotonic clock.

bool is_watched(std::uintptr_t at) {
  return std::ranges::any_of(written_mappings, [at](const WrittenMapping& slot) {
    const std::size_t bytes = slot.bytes.load(std::memory_order_acquire);
    const std::uintptr_t begin = slot.begin.load(std::memory_order_relaxed);
    return at >= begin && at - begin < bytes;
  });
}

bool can_be_read(std::uintptr_t at) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Kernels before 5.14 do not know this question.
  return ::madvise(reinterpret_cast<void*>(at / page * page), page, MADV_POPULATE_READ) == 0 ||
         errno == EINVAL;
}

/// A log is no place for the handler of a signal: writes the line to standard error itself.
void tell() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  std::int64_t last = last_news_s.load();
  if (now.tv_sec - last < between_news_s || !last_news_s.compare_exchange_strong(last, now.tv_sec))
    return;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, news.data(), news.size());
}

}  // namespace

void watch_written_mapping(const void* at, std::size_t bytes) {
  add_bus_repair(wait_for_written_page);
  for (WrittenMapping& slot : written_mappings) {
    if (slot.is_taken.exchange(true)) continue;
    slot.begin.store(reinterpret_cast<std::uintptr_t>(at), std::memory_order_relaxed);
    slot.bytes.store(bytes, std::memory_order_release);
    return;
  }
}

void forget_written_mapping(const void* at) {
  for (WrittenMapping& slot : written_mappings) {
    if (slot.bytes.load() == 0 || slot.begin.load() != reinterpret_cast<std::uintptr_t>(at))
      continue;
    slot.bytes.store(0);
    slot.is_taken.store(false);
    return;
  }
}

bool wait_for_written_page(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (!is_watched(at) || !can_be_read(at)) return false;
  waiting.fetch_add(1);
  tell();
  const auto pause = std::chrono::nanoseconds(limits::full_disk_pause).count();
  constexpr std::int64_t second = 1'000'000'000;
  const timespec wait{.tv_sec = pause / second, .tv_nsec = pause % second};
  ::nanosleep(&wait, nullptr);
  waiting.fetch_sub(1);
  return true;
}

bool a_written_page_waits() { return waiting.load() > 0; }

}  // namespace fl
