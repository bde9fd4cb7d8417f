// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_rans.hpp"

#include "kernels/cuda/bodies/rans_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__device__ std::size_t symbols_of(const SymbolBlocks& blocks, std::size_t begin) {
  return blocks.n - begin < blocks.block ? blocks.n - begin : blocks.block;
}

__global__ void encode_kernel(const std::uint8_t* symbols, SymbolBlocks blocks, std::uint16_t* out,
                              std::size_t slot_words, std::uint32_t* bytes) {
  __shared__ EncodeMemory shared;
  const std::size_t b = blockIdx.x;
  const std::size_t begin = b * blocks.block;
  const auto* frequencies = reinterpret_cast<const std::uint16_t*>(blocks.frequencies + b);
  encode_stream(
      WarpBlock{},
      EncodeRun{frequencies, symbols_of(blocks, begin), out + (b + 1) * slot_words, bytes + b},
      shared, PlainSymbols{symbols + begin});
}

__global__ void decode_kernel(const std::uint8_t* in, const std::uint64_t* ends,
                              SymbolBlocks blocks, const std::uint8_t* classes,
                              std::uint8_t* symbols, std::uint32_t* is_good) {
  extern __shared__ rans::Place places[];
  const std::size_t b = blockIdx.x;
  const std::size_t begin = b * blocks.block;
  const auto* frequencies = reinterpret_cast<const std::uint16_t*>(blocks.frequencies + b);
  decode_stream(WarpBlock{},
                DecodeRun{in + ends[b], ends[b + 1] - ends[b], frequencies,
                          classes == nullptr ? nullptr : classes + begin, symbols + begin,
                          symbols_of(blocks, begin), is_good + b},
                places);
}

}  // namespace

int rans_encode(const std::uint8_t* symbols, const SymbolBlocks& blocks, std::uint8_t* out,
                std::uint32_t* bytes, CUstream_st* stream) {
  return start(encode_kernel, static_cast<unsigned>(block_count(blocks)), WarpBlock::threads, 0,
               stream, symbols, blocks, reinterpret_cast<std::uint16_t*>(out),
               rans_bytes_max(blocks.block) / sizeof(std::uint16_t), bytes);
}

int rans_decode(const std::uint8_t* in, const std::uint64_t* ends, const SymbolBlocks& blocks,
                const std::uint8_t* classes, std::size_t class_count, std::uint8_t* symbols,
                std::uint32_t* is_good, CUstream_st* stream) {
  // This sets the kernel's limit for all threads of the process. It is always the same value, so
  // threads do not disturb each other.
  int device = 0;
  int most = 0;
  if (const int error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const int error =
          cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      error != cudaSuccess) {
    return error;
  }
  if (const int error =
          cudaFuncSetAttribute(decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
      error != cudaSuccess) {
    return error;
  }
  const std::size_t shared_bytes = class_count * rans::total * sizeof(rans::Place);
  return start(decode_kernel, static_cast<unsigned>(block_count(blocks)), WarpBlock::threads,
               shared_bytes, stream, in, ends, blocks, classes, symbols, is_good);
}

}  // namespace fl::cuda
