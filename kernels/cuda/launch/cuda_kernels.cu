// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_kernels.hpp"

#include "kernels/cuda/bodies/dither_body.hpp"
#include "kernels/cuda/bodies/scan_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"
#include "kernels/generic/element_math.hpp"

namespace fl::cuda {

namespace {

using element::Scalar;

template <class Use>
__device__ void for_each_of(std::size_t n, const Use& use) {
  for_each_index(WideBlock{}, threadIdx.x, n, use);
}

__global__ void to_half_kernel(const float* x, std::size_t n, std::uint16_t* out) {
  for_each_of(n, [&](std::size_t i) { out[i] = element::to_half(x[i]); });
}

__global__ void from_half_kernel(const std::uint16_t* x, std::size_t n, float* out) {
  for_each_of(n, [&](std::size_t i) { out[i] = element::from_half(x[i]); });
}

__global__ void to_bf16_kernel(const float* x, std::size_t n, std::uint16_t* out) {
  for_each_of(n, [&](std::size_t i) {
    out[i] = static_cast<std::uint16_t>(element::to_bf16<Scalar>(x[i]));
  });
}

__global__ void from_bf16_kernel(const std::uint16_t* x, std::size_t n, float* out) {
  for_each_of(n, [&](std::size_t i) { out[i] = element::from_bf16<Scalar>(x[i]); });
}

__global__ void gaussian_kernel(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first,
                                float* out, std::size_t n) {
  for_each_of(n, [&](std::size_t i) {
    const std::uint64_t element = first + i;
    const philox::Block block = philox::block_at(seed, stream_id, philox::counter_of(element));
    const unsigned pair = philox::word_of(element) & ~1u;
    float cosine_part;
    float sine_part;
    element::box_muller<Scalar>(static_cast<std::int32_t>(block.word[pair]),
                                static_cast<std::int32_t>(block.word[pair + 1]), cosine_part,
                                sine_part);
    out[i] = philox::word_of(element) % 2 == 0 ? cosine_part : sine_part;
  });
}

__global__ void quantize_kernel(const float* x, std::size_t n, QuantizeArgs args,
                                element::QuantizeFactors factors, std::int16_t* levels) {
  for_each_half(WideBlock{}, threadIdx.x, args.seed, args.stream, args.first, n,
                [&](std::size_t i, std::uint32_t half) {
                  levels[i] = static_cast<std::int16_t>(
                      element::quantize<Scalar>(x[i], static_cast<std::int32_t>(half), factors));
                });
}

__global__ void dequantize_kernel(const std::int16_t* levels, std::size_t n, float step,
                                  float* out) {
  for_each_of(n, [&](std::size_t i) { out[i] = static_cast<float>(levels[i]) * step; });
}

__global__ void dither_kernel(const float* x, std::size_t n, DitherArgs args, std::int16_t* levels,
                              std::uint8_t* classes, std::uint32_t* largest) {
  __shared__ std::uint32_t shared;
  dither(WideBlock{}, x, n, args, levels, classes, largest, &shared);
}

__global__ void undither_kernel(const std::int16_t* levels, std::size_t n, DitherArgs args,
                                float* out) {
  undither(WideBlock{}, levels, n, args, out);
}

__global__ void dither_classes_kernel(std::size_t n, DitherArgs args, std::uint8_t* classes) {
  dither_classes(WideBlock{}, n, args, classes);
}

__global__ void round_kernel(const float* x, std::size_t n, float step, std::int16_t* levels,
                             std::uint32_t* largest) {
  __shared__ std::uint32_t shared;
  round_levels(WideBlock{}, x, n, step, levels, largest, &shared);
}

__global__ void scan_kernel(const float* x, std::size_t n, std::size_t run, Scan* scans) {
  __shared__ ScanMemory shared;
  scan_runs(WideBlock{}, x, n, run, scans, shared);
}

__global__ void pack_signs_kernel(const float* x, std::size_t n, std::size_t run, std::uint8_t* out,
                                  double* sums) {
  __shared__ ScanMemory shared;
  pack_signs_of_runs(WideBlock{}, x, n, run, out, sums, shared);
}

__global__ void unpack_signs_kernel(const std::uint8_t* packed, std::size_t n, float scale,
                                    float* out) {
  for_each_of(n,
              [&](std::size_t i) { out[i] = (packed[i / 8] >> i % 8 & 1) != 0 ? -scale : scale; });
}

/// Starts `kernel` with a thread for each of n elements.
template <class... Parameters, class... Arguments>
int start_for(void (*kernel)(Parameters...), std::size_t n, CUstream_st* stream,
              const Arguments&... arguments) {
  return start(kernel, blocks_for(n), threads_per_block, 0, stream, arguments...);
}

/// Starts `kernel` with a thread for each eight elements, for for_each_half().
template <class... Parameters, class... Arguments>
int start_halves(void (*kernel)(Parameters...), std::size_t n, CUstream_st* stream,
                 const Arguments&... arguments) {
  return start_for(kernel, (n + 7) / 8, stream, arguments...);
}

/// Starts `kernel` with a block for each run, at most blocks_max.
template <class... Parameters, class... Arguments>
int start_runs(void (*kernel)(Parameters...), std::size_t n, std::size_t run, CUstream_st* stream,
               const Arguments&... arguments) {
  const auto blocks = static_cast<unsigned>(std::min(blocks_max, (n + run - 1) / run));
  return start(kernel, blocks, threads_per_block, 0, stream, arguments...);
}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int to_half(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream) {
  return start_for(to_half_kernel, n, stream, x, n, out);
}

int from_half(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream) {
  return start_for(from_half_kernel, n, stream, x, n, out);
}

int to_bf16(const float* x, std::size_t n, std::uint16_t* out, CUstream_st* stream) {
  return start_for(to_bf16_kernel, n, stream, x, n, out);
}

int from_bf16(const std::uint16_t* x, std::size_t n, float* out, CUstream_st* stream) {
  return start_for(from_bf16_kernel, n, stream, x, n, out);
}

int gaussian(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first, float* out,
             std::size_t n, CUstream_st* stream) {
  return start_for(gaussian_kernel, n, stream, seed, stream_id, first, out, n);
}

int quantize(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels,
             CUstream_st* stream) {
  const auto factors = element::quantize_factors(args.scale, args.levels);
  return start_halves(quantize_kernel, n, stream, x, n, args, factors, levels);
}

int dequantize(const std::int16_t* levels, std::size_t n, float step, float* out,
               CUstream_st* stream) {
  return start_for(dequantize_kernel, n, stream, levels, n, step, out);
}

int dither(const float* x, std::size_t n, const DitherArgs& args, std::int16_t* levels,
           std::uint8_t* classes, std::uint32_t* largest, CUstream_st* stream) {
  return start_halves(dither_kernel, n, stream, x, n, args, levels, classes, largest);
}

int undither(const std::int16_t* levels, std::size_t n, const DitherArgs& args, float* out,
             CUstream_st* stream) {
  return start_halves(undither_kernel, n, stream, levels, n, args, out);
}

int dither_classes(std::size_t n, const DitherArgs& args, std::uint8_t* classes,
                   CUstream_st* stream) {
  return start_halves(dither_classes_kernel, n, stream, n, args, classes);
}

int round(const float* x, std::size_t n, float step, std::int16_t* levels, std::uint32_t* largest,
          CUstream_st* stream) {
  return start_for(round_kernel, n, stream, x, n, step, levels, largest);
}

int scan(const float* x, std::size_t n, std::size_t run, Scan* scans, CUstream_st* stream) {
  return start_runs(scan_kernel, n, run, stream, x, n, run, scans);
}

int pack_signs(const float* x, std::size_t n, std::size_t run, std::uint8_t* out, double* sums,
               CUstream_st* stream) {
  return start_runs(pack_signs_kernel, n, run, stream, x, n, run, out, sums);
}

int unpack_signs(const std::uint8_t* packed, std::size_t n, float scale, float* out,
                 CUstream_st* stream) {
  return start_for(unpack_signs_kernel, n, stream, packed, n, scale, out);
}

}  // namespace fl::cuda
