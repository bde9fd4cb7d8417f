// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/freed_memory.hpp"

#include <cstdlib>  // Defines __GLIBC__.

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace fl {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kept = 32 << 20;  // The largest value that glibc accepts: half of a thread's heap.
  ::mallopt(M_MMAP_THRESHOLD, kept);
  ::mallopt(M_TRIM_THRESHOLD, kept);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  constexpr int kept = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kept);
  ::mallopt(M_TRIM_THRESHOLD, kept);
#endif
}

}  // namespace fl
