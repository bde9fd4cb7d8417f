#include "kernels/cuda/cuda_kernels.hpp"

#include "kernels/cuda/device_block.cuh"
#include "kernels/element.hpp"

namespace fl::cuda {

namespace {

using element::Scalar;

/// Calls use(i) for the i of this thread, which strides over [0, n).
template <class Use>
__device__ void for_each_index(std::size_t n, const Use& use) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride) {
    use(i);
  }
}

__global__ void to_half_kernel(const float* x, std::size_t n, std::uint16_t* out) {
  for_each_index(n, [&](std::size_t i) { out[i] = element::to_half(x[i]); });
}

__global__ void from_half_kernel(const std::uint16_t* x, std::size_t n, float* out) {
  for_each_index(n, [&](std::size_t i) { out[i] = element::from_half(x[i]); });
}

__global__ void gaussian_kernel(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first,
                                float* out, std::size_t n) {
  for_each_index(n, [&](std::size_t i) {
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
  for_each_index(n, [&](std::size_t i) {
    const std::uint32_t noise = philox::half_word_at(args.seed, args.stream, args.first + i);
    levels[i] = static_cast<std::int16_t>(
        element::quantize<Scalar>(x[i], static_cast<std::int32_t>(noise), factors));
  });
}

__global__ void dequantize_kernel(const std::int16_t* levels, std::size_t n, float step,
                                  float* out) {
  for_each_index(n, [&](std::size_t i) { out[i] = static_cast<float>(levels[i]) * step; });
}

/// Starts `kernel` with a thread for each of n elements.
template <class... Parameters, class... Arguments>
int start_for(void (*kernel)(Parameters...), std::size_t n, CUstream_st* stream,
              const Arguments&... arguments) {
  return start(kernel, blocks_for(n), threads_per_block, 0, stream, arguments...);
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

int gaussian(std::uint64_t seed, std::uint64_t stream_id, std::uint64_t first, float* out,
             std::size_t n, CUstream_st* stream) {
  return start_for(gaussian_kernel, n, stream, seed, stream_id, first, out, n);
}

int quantize(const float* x, std::size_t n, const QuantizeArgs& args, std::int16_t* levels,
             CUstream_st* stream) {
  const auto factors = element::quantize_factors(args.scale, args.levels);
  return start_for(quantize_kernel, n, stream, x, n, args, factors, levels);
}

int dequantize(const std::int16_t* levels, std::size_t n, float step, float* out,
               CUstream_st* stream) {
  return start_for(dequantize_kernel, n, stream, levels, n, step, out);
}

}  // namespace fl::cuda
