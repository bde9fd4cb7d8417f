// rANS (kernels/generic/rans.hpp) of many blocks in a launch, a warp each: the same bytes and the
// same verdicts as rans_encode and rans_decode.
//
// Device memory of the current device, on `stream`, not waited for, no memory of its own; 0, or the
// start's cudaError_t (cuda_kernels.hpp). No overlaps; no alignment beyond the element's.
#pragma once

#include "kernels/generic/rans.hpp"

struct CUstream_st;

namespace fl::cuda {

/// Symbols that lie one after the other, cut into blocks of `block`, the last one shorter.
struct SymbolBlocks {
  std::size_t n;
  std::size_t block;                   // 1 to 2^30.
  const RansFrequencies* frequencies;  // One for each block, in device memory.
};

[[nodiscard]] constexpr std::size_t block_count(const SymbolBlocks& blocks) {
  return (blocks.n + blocks.block - 1) / blocks.block;
}

/// rans_encode() of each block b: its stream ends at `out + (b + 1) * rans_bytes_max(block)`, and
/// what lies before it in as many bytes may be overwritten; `bytes[b]` is how many it has. `out` is
/// at an even address.
[[nodiscard]] int rans_encode(const std::uint8_t* symbols, const SymbolBlocks& blocks,
                              std::uint8_t* out, std::uint32_t* bytes, CUstream_st* stream);

/// rans_decode() of each block b, whose stream is the bytes of `in` from ends[b] to ends[b + 1]:
/// is_good[b] becomes 1 or 0. The bytes need not be trusted; `ends`, ascending, and the frequencies
/// are what the host has checked. classes[i] is that of symbol i, below class_count; nullptr and 1
/// where there is one. Each class takes 16 KiB of a multiprocessor's shared memory; where a device
/// has less than that of class_count, an error is returned.
[[nodiscard]] int rans_decode(const std::uint8_t* in, const std::uint64_t* ends,
                              const SymbolBlocks& blocks, const std::uint8_t* classes,
                              std::size_t class_count, std::uint8_t* symbols,
                              std::uint32_t* is_good, CUstream_st* stream);

}  // namespace fl::cuda
