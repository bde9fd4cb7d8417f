// Prints the speed of every kernel in every row beside a copy of the same memory. One core; the
// best of several runs; vectors of 16 Mi values, so that memory and not the cache is measured, and
// of 16 Ki, where it is the arithmetic.
#include "kernels/kernels.hpp"
#include "kernels/pack.hpp"
#include "kernels/rans.hpp"
#include "kernels/select.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

namespace {

using namespace fl;

// Seconds of the fastest of some runs of work(), which handles `n` values.
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

void report(const char* row, const char* kernel, std::size_t n, std::size_t bytes_per_value,
            const std::function<void()>& work) {
  const double seconds = fastest(n, work);
  std::printf("%-7s %-13s %9zu values  %8.0f M values/s  %6.2f GB/s\n", row, kernel, n,
              static_cast<double>(n) / seconds * 1e-6,
              static_cast<double>(n * bytes_per_value) / seconds * 1e-9);
}

void measure(std::size_t n) {
  std::vector<float> x(n);
  std::vector<float> out(n);
  std::vector<std::uint16_t> halves(n);
  std::vector<std::int16_t> levels(n);
  std::vector<std::int64_t> sums(n);
  std::vector<std::uint8_t> packed(2 * n);
  kernels().gaussian(1, 1, 0, x.data(), n);
  volatile double sink = 0;
  const QuantizeArgs args = {.scale = 8, .levels = 127, .seed = 1, .stream = 1, .first = 0};

  report("-", "memcpy", n, 8, [&] { std::memcpy(out.data(), x.data(), n * sizeof(float)); });
  for (const Kernels* row : all_kernels()) {
    const char* name = row->name;
    report(name, "to_half", n, 6, [&] { row->to_half(x.data(), n, halves.data()); });
    report(name, "from_half", n, 6, [&] { row->from_half(halves.data(), n, out.data()); });
    report(name, "scan", n, 4, [&] { sink = sink + row->scan(x.data(), n).sum_squares; });
    report(name, "add_fixed", n, 20, [&] { row->add_fixed(sums.data(), x.data(), n, 30, 600); });
    report(name, "scale_fixed", n, 12, [&] { row->scale_fixed(sums.data(), n, 1e-9, out.data()); });
    report(name, "gaussian", n, 4, [&] { row->gaussian(1, 1, 0, out.data(), n); });
    report(name, "quantize", n, 6, [&] { row->quantize(x.data(), n, args, levels.data()); });
    report(name, "dequantize", n, 6, [&] { row->dequantize(levels.data(), n, 0.1f, out.data()); });
  }
  for (const std::int32_t s : {1, 7, 127, 32767}) {
    std::ranges::fill(levels, std::int16_t{1});
    std::printf("%2d bits: ", level_bits(s));
    report("-", "pack", n, 2, [&] { pack_levels(levels.data(), n, s, packed.data()); });
    std::printf("%2d bits: ", level_bits(s));
    report("-", "unpack", n, 2,
           [&] { sink = sink + unpack_levels(packed.data(), n, s, levels.data()); });
  }

  // The largest 1%: where they begin, then which they are, a block at a time, with their values.
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

  // Symbols of a block at a time, as the codecs use it: levels of a normal vector, 17 of them.
  const std::size_t block = std::min<std::size_t>(n, 65536);
  std::vector<std::uint8_t> symbols(n);
  std::vector<std::uint32_t> counts(rans_symbols_max);
  for (std::size_t i = 0; i < n; ++i) {
    symbols[i] = static_cast<std::uint8_t>(std::clamp(x[i] * 2 + 8.5f, 0.0f, 16.0f));
    ++counts[symbols[i]];
  }
  const RansFrequencies frequencies = rans_frequencies(counts);
  std::vector<std::uint8_t> stream(rans_bytes_max(block));
  std::size_t bytes = 0;
  report("-", "rans_encode", n, 1, [&] {
    for (std::size_t at = 0; at + block <= n; at += block) {
      bytes = rans_encode(symbols.data() + at, block, frequencies, stream.data() + stream.size());
    }
  });
  report("-", "rans_decode", n, 1, [&] {
    std::vector<std::uint8_t> back(block);
    for (std::size_t at = 0; at + block <= n; at += block) {
      sink = sink + rans_decode(stream.data() + stream.size() - bytes, bytes, frequencies,
                                back.data(), block);
    }
  });
}

}  // namespace

int main() {
  measure(16 << 10);
  measure(16 << 20);
}
