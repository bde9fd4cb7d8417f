// SPDX-License-Identifier: Apache-2.0
// Memory for long vectors that are read or written from end to end. It is in huge pages if the
// system gives them on demand (Linux with transparent_hugepage at madvise or always). With ordinary
// pages the CPU waits for a page's address every 4 KiB; adding an update to sums then takes a sixth
// longer. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace fl {

inline constexpr std::size_t huge_page_bytes = 2 << 20;

/// The caller frees the memory with std::free(). `bytes` is above 0. Throws std::bad_alloc.
[[nodiscard]] inline std::byte* allocate_in_huge_pages(std::size_t bytes) {
  constexpr std::size_t ordinary = 64;  // One cache line.
  const std::size_t alignment = bytes < huge_page_bytes ? ordinary : huge_page_bytes;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  const bool is_possible = whole >= bytes && whole <= PTRDIFF_MAX;
  void* const memory = is_possible ? std::aligned_alloc(alignment, whole) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
  // If this fails, the pages are ordinary ones.
  if (alignment == huge_page_bytes) ::madvise(memory, whole, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(memory);
}

/// The allocator of HugeVector.
template <class T>
struct HugePageAllocator {
  using value_type = T;
  HugePageAllocator() = default;
  template <class U>
  HugePageAllocator(const HugePageAllocator<U>&) {}  // NOLINT: implicit, as the standard requires.

  [[nodiscard]] T* allocate(std::size_t n) {
    if (n > ~std::size_t{0} / sizeof(T)) throw std::bad_array_new_length();
    return reinterpret_cast<T*>(allocate_in_huge_pages(n * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  template <class U>
  bool operator==(const HugePageAllocator<U>&) const {
    return true;
  }
};

/// A vector in memory with huge pages.
template <class T>
using HugeVector = std::vector<T, HugePageAllocator<T>>;

}  // namespace fl
