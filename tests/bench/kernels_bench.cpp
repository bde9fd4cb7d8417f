// SPDX-License-Identifier: Apache-2.0
// Prints the speed of every kernel in every row, and its ratio to a copy of the fp32 values. Uses
// one core and takes the best of several runs. Vectors have 16 Mi values, which measures the
// memory, and 16 Ki values, which measures the arithmetic.
#include "kernels/generic/huge_pages.hpp"
#include "kernels/generic/pack.hpp"
#include "kernels/generic/rans.hpp"
#include "kernels/generic/select.hpp"
#include "kernels/kernels.hpp"
#ifdef FL_HAS_CUDA
#include "tests/bench/cuda_rows.hpp"
#endif

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

namespace {

using namespace fl;

// Returns the seconds of the fastest of some runs of work(), which handles `n` values.
double fastest(std::size_t n, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const std::size_t repeats = std::max<std::size_t>(1, (1 << 22) / n);
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) work();
    const std::chrono::duration<double> took = Clock::now() - start;
    best = std::min(best, took.count() / static_cast<double>(repeats));
  }
  return best;
}

// Sizes and centroids as in the codec eden.
constexpr std::size_t rotated_max = 65536;
constexpr Centroids one_bit = {.count = 1, .values = {0.8f}, .thresholds = {}};
constexpr Centroids four_bits = {.count = 8,
                                 .values = {0.13f, 0.39f, 0.66f, 0.94f, 1.26f, 1.62f, 2.07f, 2.73f},
                                 .thresholds = {0.26f, 0.52f, 0.8f, 1.1f, 1.44f, 1.84f, 2.4f}};

double copy_seconds = 0;  // For a copy of the n values that are being measured.

void report(const char* row, const char* kernel, std::size_t n, std::size_t bytes_per_value,
            const std::function<void()>& work) {
  const double seconds = fastest(n, work);
  std::printf("%-7s %-17s %9zu values  %8.0f M values/s  %6.2f GB/s  %5.2f of memcpy\n", row,
              kernel, n, static_cast<double>(n) / seconds * 1e-6,
              static_cast<double>(n * bytes_per_value) / seconds * 1e-9, copy_seconds / seconds);
}

// Works block by block, as the codecs do: from values to packed levels or signs, and back into
// sums.
void measure_blocks(std::size_t n) {
  constexpr std::size_t block_max = 65536;
  const std::size_t block = std::min(n, block_max);
  std::vector<float> x(n);
  std::vector<float> out(block);
  std::vector<std::int16_t> levels(block);
  HugeVector<std::int64_t> sums(n);  // In huge pages, as in the accumulator.
  std::vector<std::uint8_t> packed(2 * block);
  kernels().gaussian(1, 1, 0, x.data(), n);
  volatile double sink = 0;
  const Kernels& row = kernels();
  const auto accumulate = [&](std::size_t at) {
    sink = sink + row.scan(out.data(), block).max_abs;
    row.add_rounded(sums.data() + at, out.data(), block, 600 * 0x1p30);
  };
  for (const std::int32_t s : {1, 7, 127}) {
    std::printf("%2d bits: ", level_bits(s));
    report(row.name, "quantize+pack", n, 4, [&] {
      for (std::size_t at = 0; at + block <= n; at += block) {
        const QuantizeArgs args = {.scale = row.scan(x.data() + at, block).max_abs,
                                   .levels = s,
                                   .seed = 1,
                                   .stream = 1,
                                   .first = at};
        row.quantize(x.data() + at, block, args, levels.data());
        pack_levels(levels.data(), block, s, packed.data());
      }
    });
    std::printf("%2d bits: ", level_bits(s));
    report(row.name, "unpack+accumulate", n, 16, [&] {
      for (std::size_t at = 0; at + block <= n; at += block) {
        sink = sink + unpack_levels(packed.data(), block, s, levels.data());
        row.dequantize(levels.data(), block, 0.1f, out.data());
        accumulate(at);
      }
    });
  }
  std::printf(" 1 bit:  ");
  report(row.name, "scan+pack", n, 4, [&] {
    for (std::size_t at = 0; at + block <= n; at += block) {
      sink = sink + row.scan(x.data() + at, block).max_abs;
      sink = sink + row.pack_signs(x.data() + at, block, packed.data());
    }
  });
  std::printf(" 1 bit:  ");
  report(row.name, "unpack+accumulate", n, 16, [&] {
    for (std::size_t at = 0; at + block <= n; at += block) {
      row.unpack_signs(packed.data(), block, 0.1f, out.data());
      accumulate(at);
    }
  });
}

// Works block by block, as the codec eden does, without the scales.
void measure_rotated(std::size_t n) {
  const std::size_t block = std::min(n, rotated_max);
  const int log2_block = std::countr_zero(block);
  std::vector<float> x(n);
  std::vector<float> rotated(block);
  std::vector<std::int16_t> levels(block);
  std::vector<std::uint8_t> packed(block);
  kernels().gaussian(1, 1, 0, x.data(), n);
  volatile double sink = 0;
  const Kernels& row = kernels();
  const float root = 1 / std::sqrt(static_cast<float>(block));
  for (const int bits : {1, 4}) {
    Centroids table = bits == 1 ? one_bit : four_bits;
    std::printf("%2d bits: ", bits);
    report(row.name, "rotate+round+pack", n, 4, [&] {
      for (std::size_t at = 0; at < n; at += block) {
        sink = sink + row.scan(x.data() + at, block).sum_squares;
        std::memcpy(rotated.data(), x.data() + at, block * sizeof(float));
        row.flip_signs(rotated.data(), block, root, 1, 0);
        row.hadamard(rotated.data(), log2_block);
        row.flip_signs(rotated.data(), block, root, 1, 1);
        row.hadamard(rotated.data(), log2_block);
        sink = sink + row.nearest(rotated.data(), block, table, levels.data());
        pack_codes(levels.data(), block, bits, packed.data());
      }
    });
    for (float& value : table.values) value /= static_cast<float>(block);
    std::printf("%2d bits: ", bits);
    report(row.name, "unpack+rotate", n, 4, [&] {
      for (std::size_t at = 0; at < n; at += block) {
        sink = sink + unpack_codes(packed.data(), block, bits, levels.data());
        row.centroids_of(levels.data(), block, table, rotated.data());
        row.hadamard(rotated.data(), log2_block);
        row.flip_signs(rotated.data(), block, root, 1, 1);
        row.hadamard(rotated.data(), log2_block);
        row.flip_signs(rotated.data(), block, 1.0f, 1, 0);
        std::memcpy(x.data() + at, rotated.data(), block * sizeof(float));
      }
    });
  }
}

void measure(std::size_t n) {
  std::vector<float> x(n);
  std::vector<float> out(n);
  std::vector<std::uint16_t> halves(n);
  std::vector<std::int16_t> levels(n);
  HugeVector<std::int64_t> sums(n);  // In huge pages, as in the accumulator.
  std::vector<std::uint8_t> packed(2 * n);
  kernels().gaussian(1, 1, 0, x.data(), n);
  volatile double sink = 0;
  const QuantizeArgs args = {.scale = 8, .levels = 127, .seed = 1, .stream = 1, .first = 0};

  const auto copy = [&] { std::memcpy(out.data(), x.data(), n * sizeof(float)); };
  copy_seconds = fastest(n, copy);
  report("-", "memcpy", n, 8, copy);
  if (n * sizeof(float) >= huge_page_bytes) {
    // For comparison with the sums, which are in huge pages if the system provides them.
    const HugeVector<float> from(x.begin(), x.end());
    HugeVector<float> to(n);
    report("-", "memcpy huge pages", n, 8,
           [&] { std::memcpy(to.data(), from.data(), n * sizeof(float)); });
  }
  for (const Kernels* row : all_kernels()) {
    const char* name = row->name;
    report(name, "to_half", n, 6, [&] { row->to_half(x.data(), n, halves.data()); });
    report(name, "from_half", n, 6, [&] { row->from_half(halves.data(), n, out.data()); });
    report(name, "to_bf16", n, 6, [&] { row->to_bf16(x.data(), n, halves.data()); });
    report(name, "from_bf16", n, 6, [&] { row->from_bf16(halves.data(), n, out.data()); });
    report(name, "range", n, 4, [&] { sink = sink + row->range(x.data(), n).max; });
    report(name, "pack_signs", n, 4,
           [&] { sink = sink + row->pack_signs(x.data(), n, packed.data()); });
    report(name, "unpack_signs", n, 4,
           [&] { row->unpack_signs(packed.data(), n, 0.1f, out.data()); });
    report(name, "scan", n, 4, [&] { sink = sink + row->scan(x.data(), n).sum_squares; });
    report(name, "add_rounded", n, 20,
           [&] { row->add_rounded(sums.data(), x.data(), n, 600 * 0x1p30); });
    report(name, "scale_fixed", n, 12, [&] { row->scale_fixed(sums.data(), n, 1e-9, out.data()); });
    report(name, "gaussian", n, 4, [&] { row->gaussian(1, 1, 0, out.data(), n); });
    report(name, "quantize", n, 6, [&] { row->quantize(x.data(), n, args, levels.data()); });
    report(name, "dither", n, 6, [&] {
      sink = sink + row->dither(x.data(), n, {.step = 0.1f, .key = 1}, levels.data(), nullptr);
    });
    report(name, "undither", n, 6,
           [&] { row->undither(levels.data(), n, {.step = 0.1f, .key = 1}, out.data()); });
    report(name, "dither_classes", n, 1,
           [&] { row->dither_classes(n, {.step = 1, .key = 1, .class_bits = 3}, packed.data()); });
    report(name, "round", n, 6,
           [&] { sink = sink + row->round(x.data(), n, 0.1f, levels.data()); });
    report(name, "dot", n, 8, [&] { sink = sink + row->dot(x.data(), out.data(), n); });
    report(name, "add_scaled", n, 12, [&] { row->add_scaled(out.data(), x.data(), n, 1e-6f); });
    report(name, "dequantize", n, 6, [&] { row->dequantize(levels.data(), n, 0.1f, out.data()); });
    const std::size_t piece = std::min(n, rotated_max);
    const int log2_piece = std::countr_zero(piece);
    std::ranges::fill(out, 0.0f);  // Other values would overflow after many runs.
    report(name, "hadamard", n, 8, [&] {
      for (std::size_t at = 0; at < n; at += piece) row->hadamard(out.data() + at, log2_piece);
    });
    report(name, "flip_signs", n, 8, [&] { row->flip_signs(out.data(), n, 1.0f, 1, 1); });
    for (const Centroids& table : {one_bit, four_bits}) {
      std::printf("%d of each sign: ", table.count);
      report(name, "nearest", n, 6,
             [&] { sink = sink + row->nearest(x.data(), n, table, levels.data()); });
      std::printf("%d of each sign: ", table.count);
      report(name, "centroids_of", n, 6,
             [&] { row->centroids_of(levels.data(), n, table, out.data()); });
    }
  }
  for (const std::int32_t s : {1, 7, 127, 32767}) {
    std::ranges::fill(levels, std::int16_t{1});
    std::printf("%2d bits: ", level_bits(s));
    report("-", "pack", n, 2, [&] { pack_levels(levels.data(), n, s, packed.data()); });
    std::printf("%2d bits: ", level_bits(s));
    report("-", "unpack", n, 2,
           [&] { sink = sink + unpack_levels(packed.data(), n, s, levels.data()); });
  }

  // The largest 1%: first the threshold, then block by block the indices and values.
  const std::span<const float> all(x);
  Cutoff cutoff{};
  report("-", "find_largest", n, 4, [&] { cutoff = find_largest({&all, 1}, n / 100); });
  report("-", "select+gather", n, 4, [&] {
    std::vector<std::uint32_t> indices(std::min<std::size_t>(n, 65536));
    Cutoff left = cutoff;
    float* values = out.data();
    for (std::size_t at = 0; at < n; at += indices.size()) {
      const std::size_t k = select_largest(all.subspan(at, indices.size()), left, indices.data());
      for (std::size_t i = 0; i < k; ++i) *values++ = x[at + indices[i]];
    }
  });

  // rANS block by block, as the codecs use it, with the levels of a normal vector.
  const std::size_t block = std::min<std::size_t>(n, 65536);
  std::vector<std::uint8_t> symbols(n);
  std::vector<std::uint8_t> back(n);
  for (const int top : {1, 8, 127}) {  // The largest level.
    const int alphabet = 2 * top + 1;
    const auto middle = static_cast<float>(top);
    for (std::size_t i = 0; i < n; ++i) {
      const float level = std::clamp(std::round(x[i] * middle / 4), -middle, middle);
      symbols[i] = static_cast<std::uint8_t>(level + middle);
    }
    std::vector<std::uint32_t> counts(rans_symbols_max);
    std::vector<std::uint8_t> stream(rans_bytes_max(block));
    const auto report_symbols = [&](const char* row, const char* kernel,
                                    const std::function<void()>& work) {
      std::printf("%3d symbols: ", alphabet);
      report(row, kernel, n, 1, work);
    };
    report_symbols("-", "memcpy", [&] { std::memcpy(back.data(), symbols.data(), n); });
    for (const Kernels* row : all_kernels()) {
      report_symbols(row->name, "count",
                     [&] { row->count_symbols(symbols.data(), n, counts.data()); });
      const RansFrequencies frequencies = rans_frequencies(counts);
      std::size_t bytes = 0;
      report_symbols(row->name, "rans_encode", [&] {
        for (std::size_t at = 0; at + block <= n; at += block) {
          bytes = rans_encode(symbols.data() + at, block, frequencies,
                              stream.data() + stream.size(), *row);
        }
      });
      report_symbols(row->name, "rans_decode", [&] {
        for (std::size_t at = 0; at + block <= n; at += block) {
          sink = sink + rans_decode(stream.data() + stream.size() - bytes, bytes, frequencies,
                                    back.data() + at, block, nullptr, *row);
        }
      });
    }
  }
}

}  // namespace

int main() {
  for (const std::size_t n : {16 << 10, 16 << 20}) {
    measure(n);
    measure_blocks(n);
    measure_rotated(n);
  }
#ifdef FL_HAS_CUDA
  measure_cuda_rows(64 << 20);  // More than fits into a GPU's cache.
#endif
}
