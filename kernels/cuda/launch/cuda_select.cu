// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_select.hpp"

#include "kernels/cuda/bodies/select_body.hpp"
#include "kernels/cuda/launch/device_block.cuh"

namespace fl::cuda {

namespace {

__global__ void begin_kernel(std::uint64_t k, Cutoff* cutoff, std::uint32_t* counts) {
  begin_digits(WideBlock{}, k, cutoff, counts);
}

__global__ void count_kernel(const float* x, std::size_t n, Digit digit, const Cutoff* cutoff,
                             std::uint32_t* counts) {
  __shared__ std::uint32_t shared[digit_counts];
  count_digit(WideBlock{}, x, n, digit, cutoff, counts, shared);
}

__global__ void narrow_kernel(Digit digit, Cutoff* cutoff, std::uint32_t* counts) {
  __shared__ std::uint32_t shared[WideBlock::threads];
  narrow_digit(WideBlock{}, digit, cutoff, counts, shared);
}

__global__ void count_tiles_kernel(const float* x, std::size_t n, const Cutoff* cutoff,
                                   Marks* sums) {
  __shared__ Marks shared[2 * WideBlock::threads];
  count_tiles(WideBlock{}, x, n, cutoff, sums, shared);
}

__global__ void add_tiles_kernel(std::size_t n, Cutoff* cutoff, Marks* sums,
                                 std::uint32_t* selected) {
  __shared__ Marks shared[2 * WideBlock::threads];
  add_tiles(WideBlock{}, n, cutoff, sums, selected, shared);
}

__global__ void write_tiles_kernel(const float* x, std::size_t n, const Cutoff* cutoff,
                                   const Marks* sums, std::uint32_t* indices) {
  __shared__ Marks shared[2 * WideBlock::threads];
  write_tiles(WideBlock{}, x, n, cutoff, sums, indices, shared);
}

// The number of elements of a run that get a block of threads. Each block adds its histogram to the
// common one, which must cost little beside reading its elements.
constexpr std::size_t counted_min = 1 << 16;

}  // namespace

int find_largest(std::span<const std::span<const float>> runs, std::uint64_t k, Cutoff* cutoff,
                 std::uint32_t* counts, CUstream_st* stream) {
  constexpr unsigned threads = threads_per_block;
  int error = start(begin_kernel, 1, threads, 0, stream, k, cutoff, counts);
  for (int place = 0; place < digit_count && error == cudaSuccess; ++place) {
    const Digit digit = digit_at(place);
    for (const std::span<const float> run : runs) {
      const std::size_t n = run.size();
      const auto blocks = static_cast<unsigned>(std::min(blocks_max, n / counted_min + 1));
      error = start(count_kernel, blocks, threads, 0, stream, run.data(), n, digit, cutoff, counts);
      if (error != cudaSuccess) return error;
    }
    error = start(narrow_kernel, 1, threads, 0, stream, digit, cutoff, counts);
  }
  return error;
}

int select_largest(const float* x, std::size_t n, Cutoff* cutoff, std::uint32_t* indices,
                   std::uint32_t* selected, std::uint64_t* sums, CUstream_st* stream) {
  constexpr unsigned threads = threads_per_block;
  const auto blocks = static_cast<unsigned>(std::min(blocks_max, tile_count(n)));
  int error = start(count_tiles_kernel, blocks, threads, 0, stream, x, n, cutoff, sums);
  if (error != cudaSuccess) return error;
  error = start(add_tiles_kernel, 1, threads, 0, stream, n, cutoff, sums, selected);
  if (error != cudaSuccess) return error;
  return start(write_tiles_kernel, blocks, threads, 0, stream, x, n, cutoff, sums, indices);
}

}  // namespace fl::cuda
