// The bodies of the CUDA kernels, run on a CPU by blocks of threads that are loops, against the
// table's rows, bit for bit. What a GPU adds (starts, barriers, atomics) is not tested here, but in
// cuda_kernels_test.
#include "kernels/cuda/quantize_body.hpp"
#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

using namespace fl;

namespace {

const Kernels& plain() { return *all_kernels().front(); }

constexpr std::size_t sizes[] = {1,  2,  3,  7,  8,   9,    15,   16,   17,
                                 31, 32, 33, 63, 255, 1023, 1024, 1025, 65537};

/// Normal values of sizes that differ, zeros of both signs and denormals among them.
std::vector<float> values(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  plain().gaussian(seed, 0, 0, x.data(), n);
  constexpr float odd[] = {0.0f, -0.0f, 1e-41f, -1e-41f, 1000.0f};
  for (std::size_t i = 0; i < n; i += 7) x[i] = odd[i / 7 % std::size(odd)];
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Shared memory as a kernel finds it: with anything in it.
template <class T>
std::vector<T> shared_memory(std::size_t n) {
  std::vector<T> out(n);
  std::memset(static_cast<void*>(out.data()), 0xA5, n * sizeof(T));
  return out;
}

/// Runs body(block) for each block of a launch, the last one first: no order is promised.
template <unsigned threads, class Body>
void launch(unsigned blocks, const Body& body) {
  for (unsigned index = blocks; index-- > 0;) body(cuda::HostBlock<threads>{index, blocks});
}

}  // namespace

TEST_CASE("fused quantizing is add, quantize, dequantize, subtract and count") {
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : {1, 2, 7, 127, 128, 32767}) {
      for (const std::uint64_t first : {0ull, 1ull, 63ull, 0xfffffffeull, 0x7fffffffffff000ull}) {
        CAPTURE(n);
        CAPTURE(top);
        CAPTURE(first);
        const std::vector<float> x = values(n, n);
        const std::vector<float> before = values(n, n + 1);
        std::vector<float> whole(n);
        for (std::size_t i = 0; i < n; ++i) whole[i] = x[i] + before[i];
        const float scale = std::max(plain().scan(whole.data(), n).max_abs, 1e-30f) * 0.75f;
        const QuantizeArgs args = {
            .scale = scale, .levels = top, .seed = 3, .stream = 4, .first = first};
        const float step = scale / static_cast<float>(top);
        std::vector<std::int16_t> levels(n);
        std::vector<float> sent(n);
        plain().quantize(whole.data(), n, args, levels.data());
        plain().dequantize(levels.data(), n, step, sent.data());
        const bool is_counted = top <= cuda::counted_levels_max;
        std::vector<std::uint32_t> counts(is_counted ? 2 * top + 1 : 0, 5);
        std::vector<std::uint32_t> counts_seen = counts;
        std::vector<float> after(n);
        for (std::size_t i = 0; i < n; ++i) {
          after[i] = whole[i] - sent[i];
          if (is_counted) ++counts[static_cast<std::size_t>(levels[i] + top)];
        }

        for (const unsigned blocks : {1u, 3u}) {
          std::vector<float> residual = before;
          std::vector<std::int16_t> levels_seen(n);
          std::ranges::fill(counts_seen, 5);
          const cuda::FusedRun run = {.x = x.data(),
                                      .residual = residual.data(),
                                      .n = n,
                                      .args = args,
                                      .factors = element::quantize_factors(scale, top),
                                      .step = step,
                                      .levels = levels_seen.data(),
                                      .counts = is_counted ? counts_seen.data() : nullptr};
          launch<64>(blocks, [&](const auto& block) {
            auto shared = shared_memory<std::uint32_t>(cuda::counts_max);
            cuda::quantize_with_feedback(block, run, shared.data());
          });
          CHECK(levels_seen == levels);
          CHECK(same_bits(residual, after));
          CHECK(counts_seen == counts);
        }
      }
    }
  }
}
