// SPDX-License-Identifier: Apache-2.0
// The zero-run coder for levels of which few are not 0: it is shorter than the entropy coder,
// decodes to the same levels, and damaged bytes give an error or levels in range.
#include "shared/codec/entropy/zero_run_coder.hpp"
#include "shared/codec/entropy/index_coder.hpp"
#include "tests/codec/codec_support.hpp"
#include "tests/support/sanitized.hpp"

#include <cstdlib>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

TEST_CASE("runs decode to the same levels, with classes or not, and damaged runs do not") {
  constexpr std::size_t n = 30'000;
  constexpr std::size_t each = test::or_sanitized(1000, 60);
  constexpr std::size_t cut = test::or_sanitized(1, 11);
  constexpr std::size_t step = test::or_sanitized(13, 331);
  for (const std::size_t count : {1u, 2u, 8u}) {
    for (const std::int32_t top : {1, 2, 40}) {
      CAPTURE(count);
      CAPTURE(top);
      std::vector<std::int16_t> levels(n);
      std::vector<std::uint8_t> of(n);
      const std::vector<float> x = normal(n, 38);
      for (std::size_t i = 0; i < n; ++i) {
        of[i] = static_cast<std::uint8_t>(i * i % 7919 % count);
        if (i % 20 != 0 || of[i] == 1) continue;  // Class 1 has only zeros.
        const long level = std::lround(x[i] * 0.5f * static_cast<float>(top));
        levels[i] = static_cast<std::int16_t>(std::clamp<long>(level, -top, top));
      }
      levels[0] = static_cast<std::int16_t>(top);
      const LevelClasses classes = {.of = of, .count = count};
      std::vector<std::byte> bytes(3);
      REQUIRE(append_runs(levels, top, bytes, classes));
      const Bytes coded = Bytes(bytes).subspan(3);
      std::vector<std::int16_t> back(n);
      CHECK(read_runs(coded, top, back, classes));
      CHECK(back == levels);
      for (std::size_t size = 0; size < coded.size(); size += size < 300 ? 1 : cut)
        REQUIRE_FALSE(read_runs(coded.first(size), top, back, classes));
      bytes.push_back(std::byte{0});
      CHECK_FALSE(read_runs(Bytes(bytes).subspan(3), top, back, classes));
      bytes.pop_back();
      for (std::size_t bit = 0; bit < coded.size() * 8; bit += bit < each ? 1 : step) {
        bytes[3 + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        if (read_runs(Bytes(bytes).subspan(3), top, back, classes)) {
          REQUIRE(std::ranges::all_of(back, [&](int level) { return std::abs(level) <= top; }));
        }
        bytes[3 + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
    }
  }
  // Too many levels that are not 0, and too few elements.
  std::vector<std::int16_t> levels(160);
  for (std::size_t i = 0; i < 10; ++i) levels[16 * i] = 1;
  std::vector<std::byte> bytes;
  CHECK_FALSE(append_runs(levels, 1, bytes));
  levels[0] = 0;
  CHECK(append_runs(levels, 1, bytes));
  bytes.clear();
  CHECK_FALSE(append_runs(std::span(levels).first(17), 1, bytes));
  CHECK(bytes.empty());
}

TEST_CASE("runs with too many levels are refused: they would be slow, and no encoder writes them") {
  std::vector<std::int16_t> back(160);
  for (const std::uint16_t count : {std::uint16_t{9}, std::uint16_t{10}}) {
    std::vector<std::uint32_t> indices(count);
    for (std::uint32_t i = 0; i < count; ++i) indices[i] = 16 * i;
    std::vector<std::byte> bytes(sizeof count);
    store(bytes, 0, count);
    EncodeScratch scratch;
    append_indices(indices, back.size(), scratch, bytes);
    bytes.insert(bytes.end(), {std::byte{0}, std::byte{0}});  // Signs.
    CHECK(read_runs(bytes, 1, back) == (count == 9));
  }
}

TEST_CASE("whenever levels are sparse enough for runs, runs are shorter than the entropy code") {
  constexpr std::size_t n = block_elements_default;
  const std::vector<float> x = normal(n, 40);
  LevelScratch scratch;
  // From one level in 17 to one in 30,000 is not 0.
  for (const float sigmas : {1.9f, 2.1f, 2.5f, 3.0f, 3.5f, 4.0f}) {
    CAPTURE(sigmas);
    std::vector<std::int16_t> levels(n);
    kernels().round(x.data(), n, 2 * sigmas, levels.data());
    std::vector<std::byte> runs;
    REQUIRE(append_runs(levels, 1, runs));
    std::vector<std::byte> room(n);
    const std::size_t coded = write_rans_levels(levels, 1, scratch, room);
    REQUIRE(coded > 0);
    CHECK(static_cast<double>(runs.size()) < 0.99 * static_cast<double>(coded));
  }
  std::vector<std::int16_t> levels(n);
  kernels().round(x.data(), n, 2 * 1.8f, levels.data());
  std::vector<std::byte> runs;
  CHECK_FALSE(append_runs(levels, 1, runs));
}

TEST_CASE("sparse ternary levels are coded as runs") {
  constexpr std::size_t n = 1 << 18;
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; i += 997) x[i] = i % 2 == 0 ? 0.5f : -0.5f;
  const auto payload = encode(*codec_of("terngrad,clip=0"), flat_layout(n), x);
  CHECK(decode(payload, flat_layout(n)) == x);
  // Each level that is not 0, one in 997, takes 11.4 bits and a sign. rANS would take 128 bytes
  // more for each of the four blocks.
  CHECK(payload.size() < 600);
}
