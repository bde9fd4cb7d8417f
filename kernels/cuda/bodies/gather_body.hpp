// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels that bring the streams of many blocks together, so that one copy takes
// them all to the host. Each block has a slot of stream_slot bytes, and its stream ends where the
// slot ends. Where the streams are gathered they end at multiples of 16 too, so they are moved in
// groups of 16 bytes.
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/cuda/bodies/rans_body.hpp"

namespace fl::cuda {

inline constexpr std::size_t stream_slot = rans_bytes_max(device_block_max);
static_assert(stream_slot % sizeof(SymbolGroup) == 0);

/// Whether the host wants a stream of so many bytes.
[[nodiscard]] FL_HOST_DEVICE constexpr bool is_wanted(const LevelCode& code, std::uint32_t bytes) {
  return bytes > 0 && bytes <= code.bytes_max;
}

/// The bytes that a stream takes among the gathered ones: whole groups.
[[nodiscard]] FL_HOST_DEVICE constexpr std::uint32_t gathered_size(std::uint32_t bytes) {
  constexpr std::uint32_t group = sizeof(SymbolGroup);
  return (bytes + group - 1) / group * group;
}

/// Fills ends[b] with where the stream of block b ends among the gathered ones: ends[b - 1] if it
/// is not wanted. One group of threads does it for all n blocks. `sums` is shared memory for a
/// number of each thread.
template <class Block>
FL_DEVICE inline void place_streams(const Block& block, const LevelCode* codes,
                                    const std::uint32_t* bytes, std::size_t n, std::uint32_t* ends,
                                    std::uint32_t* sums) {
  const std::size_t each = (n + Block::threads - 1) / Block::threads;
  const auto for_each_end = [&](unsigned thread, std::uint32_t at, const auto& use) {
    for (std::size_t b = thread * each; b < n && b < (thread + 1) * each; ++b) {
      if (is_wanted(codes[b], bytes[b])) at += gathered_size(bytes[b]);
      use(b, at);
    }
    return at;
  };
  block.each([&](unsigned thread) {
    sums[thread] = for_each_end(thread, 0, [](std::size_t, std::uint32_t) {});
  });
  block.each([&](unsigned thread) {
    std::uint32_t at = 0;
    for (unsigned before = 0; before < thread; ++before) at += sums[before];
    for_each_end(thread, at, [&](std::size_t b, std::uint32_t end) { ends[b] = end; });
  });
}

/// Moves the stream of one block, whose slot ends at `slot_end`, to `gathered`. The bytes of its
/// first group that are not the stream's have no meaning.
template <class Block>
FL_DEVICE inline void gather_stream(const Block& block, const LevelCode& code, std::uint32_t bytes,
                                    std::uint32_t end, const std::uint8_t* slot_end,
                                    std::uint8_t* gathered) {
  if (!is_wanted(code, bytes)) return;
  const std::size_t size = gathered_size(bytes);
  block.each([&](unsigned thread) {
    for (std::size_t i = thread * sizeof(SymbolGroup); i < size;
         i += Block::threads * sizeof(SymbolGroup)) {
      store_group(gathered + end - size + i, load_group(slot_end - size + i));
    }
  });
}

}  // namespace fl::cuda
