// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/cuda_rows.hpp"

#include "kernels/cuda/cuda_codec_device.hpp"
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_matrix.hpp"
#include "kernels/cuda/cuda_pack.hpp"
#include "kernels/cuda/cuda_quantize.hpp"
#include "kernels/cuda/cuda_rans.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/cuda/cuda_select.hpp"
#include "kernels/generic/pack.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

namespace {

using namespace fl;

void check(int error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::_Exit(1);
}

/// Device memory that lives to the end of the program.
template <class T>
T* device_memory(std::size_t n) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, n * sizeof(T)));
  check(cudaMemset(memory, 0, n * sizeof(T)));
  return static_cast<T*>(memory);
}

template <class T>
T* to_device(const std::vector<T>& values) {
  T* const memory = device_memory<T>(values.size());
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  check(cudaDeviceSynchronize());  // cudaMemcpy may return before the copy has ended.
  return memory;
}

struct Timer {
  Timer() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
  }
  /// Returns the device's time of the fastest of nine runs of work(stream), in seconds.
  double fastest(const std::function<int(CUstream_st*)>& work) const {
    float best_ms = std::numeric_limits<float>::max();
    for (int run = 0; run < 9; ++run) {
      check(work(stream));  // Keeps the device busy while the host launches the measured run.
      check(cudaEventRecord(begin, stream));
      check(work(stream));
      check(cudaEventRecord(end, stream));
      check(cudaEventSynchronize(end));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end));
      best_ms = std::min(best_ms, ms);
    }
    return best_ms * 1e-3;
  }
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

/// Seconds from a vector on the device to its coded levels in host memory, as an encoder does it:
/// the host computes the frequencies, and one slot's streams are copied while the other slot
/// quantizes.
double seconds_of_levels(CodecDevice& device, const LevelBlock& rounding, const float* x,
                         std::size_t n, std::size_t block) {
  struct Batch {
    std::vector<LevelBlock> blocks;
    std::vector<LevelCode> codes;
  };
  Batch batches[CodecDevice::slots];
  const std::size_t batch_values = device.batch_blocks() * block;
  const std::size_t count = (n + batch_values - 1) / batch_values;
  const auto start = [&](std::size_t number) {
    Batch& batch = batches[number % CodecDevice::slots];
    batch.blocks.clear();
    const std::size_t end = std::min(n, (number + 1) * batch_values);
    for (std::size_t at = number * batch_values; at < end; at += block) {
      LevelBlock& next = batch.blocks.emplace_back(rounding);
      next.begin = at;
      next.elements = static_cast<std::uint32_t>(block);
      next.seed = at;
    }
    check(device.start(number % CodecDevice::slots, x, batch.blocks));
  };
  const auto began = std::chrono::steady_clock::now();
  start(0);
  for (std::size_t number = 0; number < count; ++number) {
    if (number + 1 < count) start(number + 1);
    const std::size_t slot = number % CodecDevice::slots;
    std::span<const LevelTally> tallies;
    check(device.tallies(slot, tallies));
    auto& codes = batches[slot].codes;
    codes.assign(tallies.size(), {});
    for (std::size_t b = 0; b < codes.size(); ++b) {
      codes[b].packed =
          rounding.rounding == LevelRounding::sign ? batches[slot].blocks[b].elements : 0;
      const std::span counts(tallies[b].counts, device_alphabet);
      std::ranges::copy(rans_frequencies(counts), codes[b].frequencies);
      codes[b].top = device_levels_max;
      codes[b].bytes_max = static_cast<std::uint32_t>(block);
    }
    check(device.code(slot, codes));
    std::vector<std::span<const std::uint8_t>> streams(codes.size());
    std::span<const std::uint32_t> bytes;
    check(device.streams(slot, streams, bytes));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void measure_codec_device(const float* x, std::size_t n, std::size_t block) {
  const char* error = nullptr;
  const auto device = cuda::make_codec_device(error);
  if (!device) {
    std::printf("cuda    no codec device: %s\n", error);
    return;
  }
  const auto report = [&](const char* what, double best) {
    std::printf("%-7s %-17s %9zu values  %8.0f M values/s, to the host's memory\n", "cuda", what, n,
                static_cast<double>(n) / best * 1e-6);
  };
  const auto report_levels = [&](const char* what, const LevelBlock& rounding) {
    double best = std::numeric_limits<double>::max();
    for (int run = 0; run < 9; ++run)
      best = std::min(best, seconds_of_levels(*device, rounding, x, n, block));
    report(what, best);
  };
  report_levels("levels, coded", {.rounding = LevelRounding::dither, .most = 60, .step = 0.5f});
  report_levels("fitted, coded", {.rounding = LevelRounding::fitted,
                                  .most = 60,
                                  .levels = 7,
                                  .bucket = static_cast<std::uint32_t>(block)});  // kbit:4+ef.
  report_levels("signs", {.rounding = LevelRounding::sign, .most = 60});
  LevelBlock rotated = {.rounding = LevelRounding::rotated, .most = 60};
  rotated.split = static_cast<std::uint32_t>(block);
  rotated.sent = rotated.split;
  rotated.centroids[0] = {.count = 2, .values = {0.45f, 1.51f}, .thresholds = {0.98f}};  // eden:2.
  report_levels("rotated, coded", rotated);
  double best = std::numeric_limits<double>::max();
  for (int run = 0; run < 9; ++run) {
    const auto began = std::chrono::steady_clock::now();
    const std::span<const float> all(x, n);
    Cutoff cutoff{};
    check(device->find_largest({&all, 1}, n / 100, cutoff));
    std::vector<std::uint32_t> indices;
    for (std::size_t at = 0; at < n; at += device_select_max) {
      const std::size_t count = std::min(device_select_max, n - at);
      check(device->select_largest(all.subspan(at, count), cutoff, indices));
    }
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  report("1 %, selected", best);
}

}  // namespace

void measure_cuda_rows(std::size_t n) {
  if (cuda::device_count() == 0) {
    std::puts("cuda    no device: the CUDA kernels were not measured");
    return;
  }
  constexpr std::size_t block = 65536;
  n -= n % block;
  const std::size_t blocks = n / block;
  std::vector<float> values(n);
  kernels().gaussian(1, 1, 0, values.data(), n);
  std::vector<std::uint8_t> symbols(n);
  for (std::size_t i = 0; i < n; ++i) {
    symbols[i] = static_cast<std::uint8_t>(std::clamp(std::round(values[i] * 4) + 16, 0.0f, 32.0f));
  }
  std::vector<RansFrequencies> frequencies;
  std::vector<std::uint8_t> streams;
  std::vector<std::uint64_t> ends = {0};
  for (std::size_t at = 0; at < n; at += block) {
    std::vector<std::uint32_t> counts(rans_symbols_max);
    kernels().count_symbols(symbols.data() + at, block, counts.data());
    frequencies.push_back(rans_frequencies(counts));
    std::vector<std::uint8_t> buffer(rans_bytes_max(block));
    const std::size_t bytes =
        rans_encode(symbols.data() + at, block, frequencies.back(), buffer.data() + buffer.size());
    streams.insert(streams.end(), buffer.end() - static_cast<std::ptrdiff_t>(bytes), buffer.end());
    ends.push_back(streams.size());
  }

  const float* const x = to_device(values);
  float* const out = device_memory<float>(n);
  auto* const levels = device_memory<std::int16_t>(n);
  auto* const halves = device_memory<std::uint16_t>(n);
  auto* const bytes = device_memory<std::uint8_t>(blocks * rans_bytes_max(block));
  auto* const numbers = device_memory<std::uint32_t>(std::max(cuda::digit_counts, n));
  auto* const word = device_memory<std::uint32_t>(1);
  auto* const scans = device_memory<Scan>(blocks);
  auto* const sums = device_memory<double>(blocks);
  auto* const between = device_memory<std::uint64_t>(cuda::tile_sums(n));
  auto* const cutoff = device_memory<Cutoff>(1);
  auto* const lengths = device_memory<std::uint32_t>(blocks);
  const auto* const flips =
      to_device(std::vector<cuda::SignFlip>(blocks, {.factor = 1, .seed = 1, .stream = 1}));
  const auto* const device_symbols = to_device(symbols);
  const auto* const device_streams = to_device(streams);
  const auto* const device_ends = to_device(ends);
  const cuda::SymbolBlocks symbol_blocks = {
      .n = n, .block = block, .frequencies = to_device(frequencies)};
  const QuantizeArgs args = {.scale = 8, .levels = 127, .seed = 1, .stream = 1, .first = 0};
  const DitherArgs dither_args = {.step = 0.1f, .key = 1, .first = 0, .class_bits = 3};

  const Timer timer;
  double copy_seconds = 0;
  const auto report = [&](const char* kernel, std::size_t bytes_per_value, const auto& work) {
    const double seconds = timer.fastest(work);
    if (copy_seconds == 0) copy_seconds = seconds;
    std::printf("%-7s %-17s %9zu values  %8.0f M values/s  %6.0f GB/s  %5.2f of a device copy\n",
                "cuda", kernel, n, static_cast<double>(n) / seconds * 1e-6,
                static_cast<double>(n * bytes_per_value) / seconds * 1e-9, copy_seconds / seconds);
  };
  using Stream = CUstream_st*;
  report("memcpy", 8, [&](Stream s) {
    return cudaMemcpyAsync(out, x, n * sizeof(float), cudaMemcpyDeviceToDevice, s);
  });
  report("to_half", 6, [&](Stream s) { return cuda::to_half(x, n, halves, s); });
  report("from_half", 6, [&](Stream s) { return cuda::from_half(halves, n, out, s); });
  report("to_bf16", 6, [&](Stream s) { return cuda::to_bf16(x, n, halves, s); });
  report("from_bf16", 6, [&](Stream s) { return cuda::from_bf16(halves, n, out, s); });
  report("scan", 4, [&](Stream s) { return cuda::scan(x, n, block, scans, s); });
  report("pack_signs", 4, [&](Stream s) { return cuda::pack_signs(x, n, block, bytes, sums, s); });
  report("unpack_signs", 4, [&](Stream s) { return cuda::unpack_signs(bytes, n, 0.1f, out, s); });
  report("gaussian", 4, [&](Stream s) { return cuda::gaussian(1, 1, 0, out, n, s); });
  report("quantize", 6, [&](Stream s) { return cuda::quantize(x, n, args, levels, s); });
  report("dequantize", 6, [&](Stream s) { return cuda::dequantize(levels, n, 0.1f, out, s); });
  report("with feedback", 14, [&](Stream s) {
    return cuda::quantize_with_feedback(x, out, n, 8.0f / 127, 127, levels, numbers, s);
  });
  report("dither", 7,
         [&](Stream s) { return cuda::dither(x, n, dither_args, levels, bytes, word, s); });
  report("undither", 6, [&](Stream s) { return cuda::undither(levels, n, dither_args, out, s); });
  report("round", 6, [&](Stream s) { return cuda::round(x, n, 0.1f, levels, word, s); });
  check(cuda::quantize(x, n, args, levels, timer.stream));
  report("pack 8", 3, [&](Stream s) { return cuda::pack_levels(levels, n, 127, bytes, s); });
  report("unpack 8", 3,
         [&](Stream s) { return cuda::unpack_levels(bytes, n, 127, levels, word, s); });
  const QuantizeArgs few = {.scale = 8, .levels = 7, .seed = 1, .stream = 1, .first = 0};
  check(cuda::quantize(x, n, few, levels, timer.stream));
  report("pack 4", 2, [&](Stream s) { return cuda::pack_levels(levels, n, 7, bytes, s); });
  report("unpack 4", 2,
         [&](Stream s) { return cuda::unpack_levels(bytes, n, 7, levels, word, s); });
  report("rans_encode", 1, [&](Stream s) {
    return cuda::rans_encode(device_symbols, symbol_blocks, bytes, lengths, s);
  });
  report("rans_decode", 1, [&](Stream s) {
    return cuda::rans_decode(device_streams, device_ends, symbol_blocks, nullptr, 1, bytes, lengths,
                             s);
  });
  check(cudaMemsetAsync(out, 0, n * sizeof(float),
                        timer.stream));  // Other values would overflow.
  report("flip_signs", 8, [&](Stream s) { return cuda::flip_signs(out, block, blocks, flips, s); });
  report("flip+hadamard", 8, [&](Stream s) { return cuda::hadamard(out, 16, blocks, flips, s); });
  const MatrixSizes matrix = {.rows = n / 4096, .cols = 4096, .rank = 4};  // For powersgd:4.
  float* const left = out + matrix.rank * matrix.cols;
  report("multiply", 4, [&](Stream s) { return cuda::multiply(x, matrix, out, left, s); });
  report("multiply^T", 4,
         [&](Stream s) { return cuda::multiply_transposed(x, matrix, left, out, s); });
  const auto k = static_cast<std::uint32_t>(n / 100);
  const std::span<const float> all(x, n);
  report("find_largest", 4, [&](Stream s) {
    return cuda::find_largest({&all, 1}, k, cutoff, numbers, s);
  });
  report("find+select", 4, [&](Stream s) {
    const int error = cuda::find_largest({&all, 1}, k, cutoff, numbers, s);
    if (error != 0) return error;
    return cuda::select_largest(x, n, cutoff, numbers, word, between, s);
  });
  measure_codec_device(x, n, block);
}
