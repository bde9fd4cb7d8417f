// SPDX-License-Identifier: Apache-2.0
// Runs the bodies of the CUDA kernels on a CPU, where a block of threads is a loop, and compares
// them with the rows, bit for bit. cuda_kernels_test tests what a GPU adds: launches, barriers,
// atomics.
#include "tests/kernels/cuda_twins.hpp"
#include "kernels/cuda/bodies/dither_body.hpp"
#include "kernels/cuda/bodies/pack_body.hpp"
#include "kernels/cuda/bodies/quantize_body.hpp"
#include "kernels/cuda/bodies/scan_body.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

using namespace fl;
using namespace fl::twins;

TEST_CASE("fused quantizing equals add, round, dequantize, subtract and count") {
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : {1, 2, 7, 127, 128, 32767}) {
      CAPTURE(n);
      CAPTURE(top);
      const std::vector<float> x = values(n, n);
      const std::vector<float> before = values(n, n + 1);
      std::vector<float> whole(n);
      for (std::size_t i = 0; i < n; ++i) whole[i] = x[i] + before[i];
      // Some values are beyond the last level.
      const float scale = std::max(plain().scan(whole.data(), n).max_abs, 1e-30f) * 0.75f;
      const float step = scale / static_cast<float>(top);
      std::vector<std::int16_t> levels(n);
      std::vector<float> sent(n);
      plain().round(whole.data(), n, step, levels.data());
      const auto last = static_cast<std::int16_t>(top);
      for (std::int16_t& level : levels)
        level = std::clamp(level, static_cast<std::int16_t>(-last), last);
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
                                    .step = step,
                                    .top = top,
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

TEST_CASE("dither, undither and round by blocks equal the rows") {
  for (const std::size_t n : sizes) {
    for (const std::uint64_t first : {0ull, 1ull, 63ull, 0xfffffffeull, 0x7fffffffffff000ull}) {
      for (const float step : {0.25f, 1e-5f, 100.0f}) {
        CAPTURE(n);
        CAPTURE(first);
        CAPTURE(step);
        const std::vector<float> x = values(n, n + 2);
        const DitherArgs args = {
            .step = step, .key = 0xfedcba9876543210, .first = first, .class_bits = 3};
        std::vector<std::int16_t> levels(n);
        std::vector<std::uint8_t> classes(n);
        std::vector<float> back(n);
        const std::int32_t largest =
            plain().dither(x.data(), n, args, levels.data(), classes.data());
        plain().undither(levels.data(), n, args, back.data());
        std::vector<std::int16_t> rounded(n);
        const std::int32_t largest_rounded = plain().round(x.data(), n, step, rounded.data());

        std::vector<std::int16_t> levels_seen(n);
        std::vector<std::int16_t> levels_alone(n);
        std::vector<std::uint8_t> classes_seen(n);
        std::vector<std::uint8_t> classes_alone(n);
        std::vector<float> back_seen(n);
        std::vector<std::int16_t> rounded_seen(n);
        std::uint32_t largest_seen = 0;
        std::uint32_t largest_alone = 0;
        std::uint32_t largest_rounded_seen = 0;
        launch<64>(3, [&](const auto& block) {
          std::uint32_t shared = 0xA5A5A5A5;
          cuda::dither(block, x.data(), n, args, levels_seen.data(), classes_seen.data(),
                       &largest_seen, &shared);
          cuda::dither(block, x.data(), n, args, levels_alone.data(), nullptr, &largest_alone,
                       &shared);
          cuda::dither_classes(block, n, args, classes_alone.data());
          cuda::undither(block, levels.data(), n, args, back_seen.data());
          cuda::round_levels(block, x.data(), n, step, rounded_seen.data(), &largest_rounded_seen,
                             &shared);
        });
        CHECK(levels_seen == levels);
        CHECK(levels_alone == levels);
        CHECK(classes_seen == classes);
        CHECK(classes_alone == classes);
        CHECK(same_bits(back_seen, back));
        CHECK(rounded_seen == rounded);
        CHECK(largest_seen == static_cast<std::uint32_t>(largest));
        CHECK(largest_alone == static_cast<std::uint32_t>(largest));
        CHECK(largest_rounded_seen == static_cast<std::uint32_t>(largest_rounded));
      }
    }
  }
}

TEST_CASE("scan and pack_signs of runs by blocks equal the rows") {
  const auto bad = std::numeric_limits<float>::quiet_NaN();
  const auto infinite = std::numeric_limits<float>::infinity();
  for (const std::size_t n : sizes) {
    for (const std::size_t run : {8u, 24u, 4096u, 5000u, 65536u}) {
      CAPTURE(n);
      CAPTURE(run);
      std::vector<float> x = values(n, n + 3);
      const std::size_t runs = (n + run - 1) / run;
      std::vector<std::uint8_t> bits((n + 7) / 8);
      std::vector<double> sums(runs);
      for (std::size_t r = 0; r < runs; ++r) {
        sums[r] = plain().pack_signs(x.data() + r * run, std::min(run, n - r * run),
                                     bits.data() + r * run / 8);
      }
      std::vector<std::uint8_t> bits_seen((n + 7) / 8, 0xff);
      std::vector<double> sums_seen(runs);
      launch<64>(2, [&](const auto& block) {
        auto shared = shared_memory<cuda::ScanMemory>(1);
        cuda::pack_signs_of_runs(block, x.data(), n, run, bits_seen.data(), sums_seen.data(),
                                 shared[0]);
      });
      CHECK(bits_seen == bits);
      CHECK(same_bits(sums_seen, sums));

      for (const bool is_bad : {false, true}) {
        if (is_bad) {  // In some runs, and at the very end.
          for (std::size_t i = n / 2; i < n; i += 5000) x[i] = i % 3 == 0 ? bad : -infinite;
          x[n - 1] = infinite;
        }
        std::vector<Scan> scans(runs);
        launch<64>(2, [&](const auto& block) {
          auto shared = shared_memory<cuda::ScanMemory>(1);
          cuda::scan_runs(block, x.data(), n, run, scans.data(), shared[0]);
        });
        for (std::size_t r = 0; r < runs; ++r) {
          const Scan wanted = plain().scan(x.data() + r * run, std::min(run, n - r * run));
          CHECK(scans[r].first_bad == wanted.first_bad);
          CHECK(scans[r].max_abs == wanted.max_abs);
          CHECK(std::memcmp(&scans[r].sum_squares, &wanted.sum_squares, sizeof(double)) == 0);
        }
      }
    }
  }
}

TEST_CASE("bit fields by blocks equal the host's, and blocks reject what it rejects") {
  constexpr std::int32_t tops[] = {1, 2, 3, 4, 7, 12, 63, 100, 127, 128, 1000, 5000, 32767};
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : tops) {
      CAPTURE(n);
      CAPTURE(top);
      std::vector<std::int16_t> levels(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto span = static_cast<std::uint32_t>(2 * top + 1);
        const auto code = static_cast<std::int32_t>(philox::block_at(1, n, i).word[0] % span);
        levels[i] = static_cast<std::int16_t>(code - top);
      }
      std::vector<std::uint8_t> packed(packed_bytes(n, top));
      pack_levels(levels.data(), n, top, packed.data());
      const cuda::Fields fields = cuda::fields_of_levels(top);
      std::vector<std::uint8_t> packed_seen(packed.size(), 0xff);
      launch<32>(3, [&](const auto& block) {
        cuda::pack_fields(block, levels.data(), n, fields, packed_seen.data());
      });
      CHECK(packed_seen == packed);
      // First undamaged. Then the last bytes are all ones: mostly invalid codes or filling bits.
      for (const std::size_t damaged : {0u, 1u, 3u}) {
        for (std::size_t k = 0; k < std::min(damaged, packed.size()); ++k) {
          packed[packed.size() - 1 - k] = 0xff;
        }
        std::vector<std::int16_t> back(n);
        std::vector<std::int16_t> back_seen(n);
        const bool is_good = unpack_levels(packed.data(), n, top, back.data());
        std::uint32_t is_bad = 0;
        launch<32>(3, [&](const auto& block) {
          cuda::unpack_fields(block, packed.data(), n, fields, back_seen.data(), &is_bad);
        });
        CHECK(is_bad == (is_good ? 0 : 1));
        if (damaged == 0) CHECK(is_good);
        if (is_good) CHECK(back_seen == back);
      }
    }
  }
}

TEST_CASE("blocks pack and unpack codes that all have a level") {
  for (const std::size_t n : sizes) {
    for (int bits = 1; bits <= 7; ++bits) {
      CAPTURE(n);
      CAPTURE(bits);
      std::vector<std::int16_t> levels(n);
      for (std::size_t i = 0; i < n; ++i) {
        const auto code = static_cast<int>(philox::block_at(2, n, i).word[0] >> (32 - bits));
        levels[i] = static_cast<std::int16_t>(code - (1 << (bits - 1)));
      }
      std::vector<std::uint8_t> packed(packed_code_bytes(n, bits));
      pack_codes(levels.data(), n, bits, packed.data());
      const cuda::Fields fields = cuda::fields_of_codes(bits);
      std::vector<std::uint8_t> packed_seen(packed.size(), 0xff);
      std::vector<std::int16_t> back(n);
      std::uint32_t is_bad = 0;
      launch<32>(3, [&](const auto& block) {
        cuda::pack_fields(block, levels.data(), n, fields, packed_seen.data());
        cuda::unpack_fields(block, packed.data(), n, fields, back.data(), &is_bad);
      });
      CHECK(packed_seen == packed);
      CHECK(back == levels);
      CHECK(is_bad == 0);
      if (n * static_cast<std::size_t>(bits) % 8 == 0) continue;
      packed.back() |= 0x80;  // A filling bit.
      launch<32>(3, [&](const auto& block) {
        cuda::unpack_fields(block, packed.data(), n, fields, back.data(), &is_bad);
      });
      CHECK(is_bad == 1);
    }
  }
}
