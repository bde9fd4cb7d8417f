// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_pack.hpp"

#include "kernels/cuda/bodies/pack_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void pack_kernel(const std::int16_t* x, std::size_t n, Fields fields,
                            std::uint8_t* out) {
  pack_fields(WideBlock{}, x, n, fields, out);
}

__global__ void unpack_kernel(const std::uint8_t* packed, std::size_t n, Fields fields,
                              std::int16_t* out, std::uint32_t* is_bad) {
  unpack_fields(WideBlock{}, packed, n, fields, out, is_bad);
}

int pack(const std::int16_t* x, std::size_t n, const Fields& fields, std::uint8_t* out,
         CUstream_st* stream) {
  return start(pack_kernel, blocks_for((n + 7) / 8), threads_per_block, 0, stream, x, n, fields,
               out);
}

int unpack(const std::uint8_t* packed, std::size_t n, const Fields& fields, std::int16_t* out,
           std::uint32_t* is_bad, CUstream_st* stream) {
  return start(unpack_kernel, blocks_for((n + 7) / 8), threads_per_block, 0, stream, packed, n,
               fields, out, is_bad);
}

}  // namespace

int pack_levels(const std::int16_t* x, std::size_t n, std::int32_t levels, std::uint8_t* out,
                CUstream_st* stream) {
  return pack(x, n, fields_of_levels(levels), out, stream);
}

int unpack_levels(const std::uint8_t* packed, std::size_t n, std::int32_t levels, std::int16_t* out,
                  std::uint32_t* is_bad, CUstream_st* stream) {
  return unpack(packed, n, fields_of_levels(levels), out, is_bad, stream);
}

int pack_codes(const std::int16_t* x, std::size_t n, int bits, std::uint8_t* out,
               CUstream_st* stream) {
  return pack(x, n, fields_of_codes(bits), out, stream);
}

int unpack_codes(const std::uint8_t* packed, std::size_t n, int bits, std::int16_t* out,
                 std::uint32_t* is_bad, CUstream_st* stream) {
  return unpack(packed, n, fields_of_codes(bits), out, is_bad, stream);
}

}  // namespace fl::cuda
