// SPDX-License-Identifier: Apache-2.0
// Runs the bodies of the CUDA kernels that select and rotate on a CPU, in the launches of their .cu
// files, and compares them with the host's functions.
#include "kernels/cuda/bodies/rotate_body.hpp"
#include "tests/kernels/host_launches.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace fl;
using namespace fl::twins;

namespace {

struct Selection {
  Cutoff cutoff;  // As find_largest() returns it.
  Cutoff left;    // After select_largest().
  std::vector<std::uint32_t> indices;
};

Selection host_selection(const std::vector<float>& x, std::uint32_t k) {
  const std::span<const float> all(x);
  Selection out{.cutoff = find_largest(std::span(&all, 1), k), .left = {}, .indices = {}};
  out.left = out.cutoff;
  out.indices.resize(x.size());
  out.indices.resize(select_largest(all, out.left, out.indices.data()));
  return out;
}

template <unsigned threads>
Selection block_selection(const std::vector<float>& x, std::uint32_t k, unsigned blocks) {
  // One run, or three, of which one is empty.
  const std::span<const float> all(x);
  const std::span<const float> parts[] = {all.first(x.size() / 3), {}, all.subspan(x.size() / 3)};
  const auto runs = blocks > 1 ? std::span(parts) : std::span(&all, 1);
  Selection out{
      .cutoff = find_largest_by_blocks<threads>(runs, k, blocks), .left = {}, .indices = {}};
  out.left = out.cutoff;
  out.indices = select_by_blocks<threads>(x, out.left, blocks);
  CHECK(out.indices.size() == k);
  return out;
}

}  // namespace

TEST_CASE("blocks select the same elements as the host, in order and with ties") {
  for (const std::size_t n : {1u, 2u, 255u, 1000u, 4095u, 4096u, 4097u, 20'000u, 300'001u}) {
    const std::vector<float> normal = values(n, n);
    std::vector<float> tied = normal;  // Only seven different magnitudes.
    for (float& v : tied) v = std::clamp(std::round(v * 2), -6.0f, 6.0f) * 0.25f;
    std::vector<float> near = normal;  // Only the last digits differ.
    for (float& v : near) v = std::copysign(1 + std::round(std::fabs(v) * 8) * 0x1p-23f, v);
    for (const auto& x :
         {normal, tied, near, std::vector<float>(n, -2.5f), std::vector<float>(n)}) {
      for (const std::size_t k : {std::size_t{1}, n / 100 + 1, n / 2 + 1, n}) {
        CAPTURE(n);
        CAPTURE(k);
        const auto wanted = host_selection(x, static_cast<std::uint32_t>(k));
        for (const unsigned blocks : {1u, 3u}) {
          const auto seen = block_selection<256>(x, static_cast<std::uint32_t>(k), blocks);
          CHECK(seen.cutoff == wanted.cutoff);
          CHECK(seen.left == wanted.left);
          CHECK(seen.indices == wanted.indices);
        }
      }
    }
  }
}

namespace {

/// A flip for each run.
std::vector<cuda::SignFlip> some_flips(std::size_t runs) {
  std::vector<cuda::SignFlip> out;
  for (std::size_t r = 0; r < runs; ++r) {
    out.push_back({.factor = 0.3f + static_cast<float>(r), .seed = 0x123456789a, .stream = 2 * r});
  }
  return out;
}

}  // namespace

TEST_CASE("blocks flip the same signs as the rows") {
  for (const std::size_t n : {1u, 31u, 33u, 1023u, 1025u, 8191u, 8192u, 8193u, 65537u}) {
    for (const std::size_t runs : {1u, 3u}) {
      CAPTURE(n);
      CAPTURE(runs);
      std::vector<float> x = values(n * runs, n);
      std::vector<float> wanted = x;
      const auto flips = some_flips(runs);
      for (std::size_t r = 0; r < runs; ++r) {
        plain().flip_signs(wanted.data() + r * n, n, flips[r].factor, flips[r].seed,
                           flips[r].stream);
      }
      launch<64>(5, [&](const auto& block) {
        auto words = shared_memory<std::uint32_t>(cuda::tile_words);
        cuda::flip_tiles(block, x.data(), n, runs, flips.data(), words.data());
      });
      CHECK(same_bits(x, wanted));
    }
  }
}

TEST_CASE("tiles transformed by blocks equal the rows', with and without flips") {
  for (int log2_n = 0; log2_n <= cuda::tile_log2; ++log2_n) {
    const std::size_t n = std::size_t{1} << log2_n;
    for (const std::size_t runs : {1u, 3u}) {
      for (const bool is_flipped : {false, true}) {
        CAPTURE(n);
        CAPTURE(runs);
        CAPTURE(is_flipped);
        std::vector<float> x = values(n * runs, n);
        std::vector<float> wanted = x;
        const auto flips = some_flips(runs);
        for (std::size_t r = 0; r < runs; ++r) {
          float* const run = wanted.data() + r * n;
          if (is_flipped) {
            plain().flip_signs(run, n, flips[r].factor, flips[r].seed, flips[r].stream);
          }
          plain().hadamard(run, log2_n);
        }
        launch<64>(2, [&](const auto& block) {
          auto shared = shared_memory<float>(cuda::tile_values);
          auto words = shared_memory<std::uint32_t>(cuda::tile_words);
          cuda::transform_tiles(block, x.data(), log2_n, runs, is_flipped ? flips.data() : nullptr,
                                shared.data(), words.data());
        });
        CHECK(same_bits(x, wanted));
      }
    }
  }
}

TEST_CASE("strides beyond a tile equal the rows', for one, two and three at once") {
  for (int past = 1; past <= 5; ++past) {
    constexpr std::size_t runs = 3;
    const int log2_n = cuda::tile_log2 + past;
    const std::size_t n = std::size_t{1} << log2_n;
    CAPTURE(past);
    std::vector<float> x = values(n * runs, 4);
    std::vector<float> wanted = x;
    const auto flips = some_flips(runs);
    for (std::size_t r = 0; r < runs; ++r) {
      float* const run = wanted.data() + r * n;
      plain().flip_signs(run, n, flips[r].factor, flips[r].seed, flips[r].stream);
      plain().hadamard(run, log2_n);
    }
    hadamard_by_blocks(x.data(), log2_n, runs, flips.data(), 3);
    CHECK(same_bits(x, wanted));
  }
}
