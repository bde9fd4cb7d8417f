// SPDX-License-Identifier: Apache-2.0
// Spans of bytes, and little-endian numbers in them. All our formats are little-endian, and the
// code is built for little-endian machines only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace fl {

static_assert(std::endian::native == std::endian::little,
              "Tributary needs a little-endian machine");

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

template <class T>
[[nodiscard]] Bytes bytes_of(std::span<T> values) {
  return std::as_bytes(values);
}
[[nodiscard]] inline Bytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
[[nodiscard]] inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Reads the number at `bytes[offset]`. The caller has checked the bounds; the same holds for
/// store().
template <class T>
requires std::is_trivially_copyable_v<T>
[[nodiscard]] T load(Bytes bytes, std::size_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
requires std::is_trivially_copyable_v<T>
void store(MutableBytes bytes, std::size_t offset, const T& value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// memcpy that is fast for every alignment. glibc's memcpy uses `rep movsb` for 2 KiB and more,
/// which is ten times slower on newer AMD processors when (to - from) % 4096 is 1 to 31, for
/// example after a one-byte id (glibc bug 30994,
/// https://sourceware.org/bugzilla/show_bug.cgi?id=30994). So this copies at most 2 KiB at a time.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    std::size_t piece = std::min<std::size_t>(bytes, 2048);
    asm("" : "+r"(piece));  // Hides the length, or GCC would emit `rep movsb` itself.
    std::memcpy(to, from, piece);
    to += piece;
    from += piece;
    bytes -= piece;
  }
}

/// Copies values, to as many that do not overlap with them. std::ranges::copy() of GCC 12 takes one
/// after the other where the source is const: 3 GB/s for bytes.
template <class T>
requires std::is_trivially_copyable_v<T>
void copy_span(std::span<const T> from, std::span<T> to) {
  copy_bytes(std::as_writable_bytes(to).data(), std::as_bytes(from).data(), from.size_bytes());
}

}  // namespace fl
