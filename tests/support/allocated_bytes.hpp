// SPDX-License-Identifier: Apache-2.0
// Shows what memory something keeps.
#pragma once

#include <malloc.h>

#include <cstddef>

namespace fl::test {

/// The bytes of this process that are allocated now, by glibc's count. It does not see what a
/// sanitizer's allocator has given.
inline std::size_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

}  // namespace fl::test
