// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/file_mapping.hpp"

#include "shared/base/io/bus_signal.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

namespace fl {

/// A mapping as the signal's handler finds it, which may only use atomics.
struct MappingSlot {
  std::atomic<bool> is_taken = false;
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> bytes = 0;  // 0: the slot is not in use.
  std::atomic<bool> has_failed = false;
};

namespace {

std::array<MappingSlot, FileMapping::mappings_max> slots;

/// Puts a page of zeros where the page that can't be read should be (BusRepair).
bool repair(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (MappingSlot& slot : slots) {
    const std::size_t bytes = slot.bytes.load(std::memory_order_acquire);
    const std::uintptr_t begin = slot.begin.load(std::memory_order_relaxed);
    if (bytes == 0 || at < begin || at - begin >= bytes) continue;
    slot.has_failed.store(true);
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    void* const start = reinterpret_cast<void*>(at / page * page);
    return ::mmap(start, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<FileMapping>> FileMapping::make(int descriptor, std::uint64_t bytes,
                                                       std::filesystem::path path) {
  if (bytes == 0) return std::unique_ptr<FileMapping>(new FileMapping(nullptr, std::move(path)));
  add_bus_repair(repair);
  for (MappingSlot& slot : slots) {
    if (slot.is_taken.exchange(true)) continue;
    const auto size = static_cast<std::size_t>(bytes);
    void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) {
      auto failed = errno_error("map " + path.string());
      slot.is_taken = false;
      return failed;
    }
    slot.has_failed = false;
    slot.begin.store(reinterpret_cast<std::uintptr_t>(at), std::memory_order_relaxed);
    slot.bytes.store(size, std::memory_order_release);
    return std::unique_ptr<FileMapping>(new FileMapping(&slot, std::move(path)));
  }
  return Error(Errc::unavailable, "map " + path.string() + ": this process has " +
                                      std::to_string(mappings_max) + " mappings already");
}

FileMapping::~FileMapping() {
  if (slot_ == nullptr) return;
  const auto size = slot_->bytes.exchange(0);
  ::munmap(reinterpret_cast<void*>(slot_->begin.load()), size);
  slot_->is_taken = false;
}

Bytes FileMapping::bytes() const {
  if (slot_ == nullptr) return {};
  return {reinterpret_cast<const std::byte*>(slot_->begin.load()), slot_->bytes.load()};
}

Result<void> FileMapping::check() const {
  if (slot_ == nullptr || !slot_->has_failed) return {};
  return Error(Errc::io, "read " + path_.string() +
                             ": a part of it can't be read: the disk fails, or the file was cut");
}

}  // namespace fl
