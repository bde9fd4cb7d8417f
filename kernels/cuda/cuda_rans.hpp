// SPDX-License-Identifier: Apache-2.0
// rANS (kernels/generic/rans.hpp) of many blocks in one launch, with a warp for each block. Bytes
// and results are those of the host's rans_encode() and rans_decode().
//
// Calls are as in cuda_kernels.hpp: memory of the current device, on `stream`, without waiting, and
// the result is 0 or the cudaError_t of the start. They allocate nothing. Pointers must not
// overlap, and need no more alignment than the element's type.
#pragma once

#include "kernels/generic/rans.hpp"

struct CUstream_st;

namespace fl::cuda {

/// n symbols, one after the other, in blocks of `block`; the last block may be shorter.
struct SymbolBlocks {
  std::size_t n;
  std::size_t block;                   // 1 to 2^30.
  const RansFrequencies* frequencies;  // One for each block, in device memory.
};

[[nodiscard]] constexpr std::size_t block_count(const SymbolBlocks& blocks) {
  return (blocks.n + blocks.block - 1) / blocks.block;
}

/// rans_encode() of each block b. The stream ends at `out + (b + 1) * rans_bytes_max(block)`, and
/// all of the rans_bytes_max(block) bytes before that may be overwritten. bytes[b] becomes the
/// stream's length. Requires: `out` is an even address; `symbols` and the blocks' size are
/// multiples of 16, and so is the address of the frequencies.
[[nodiscard]] int rans_encode(const std::uint8_t* symbols, const SymbolBlocks& blocks,
                              std::uint8_t* out, std::uint32_t* bytes, CUstream_st* stream);

/// rans_decode() of each block b, whose stream is the bytes of `in` from ends[b] to ends[b + 1].
/// is_good[b] becomes 1 if the stream is valid, else 0. The bytes may come from anyone, but the
/// host must have checked `ends` (ascending) and the frequencies. classes[i] is the class of symbol
/// i, below class_count. With one class, pass nullptr and 1. Each class takes 16 KiB of a
/// multiprocessor's shared memory; if the device has too little, the call returns an error.
[[nodiscard]] int rans_decode(const std::uint8_t* in, const std::uint64_t* ends,
                              const SymbolBlocks& blocks, const std::uint8_t* classes,
                              std::size_t class_count, std::uint8_t* symbols,
                              std::uint32_t* is_good, CUstream_st* stream);

}  // namespace fl::cuda
