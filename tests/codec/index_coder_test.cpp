// SPDX-License-Identifier: Apache-2.0
// Codes of index sets: every set decodes to itself, its size is near log2 C(n, k) bits, and damaged
// bytes are refused or decode to a valid set.
#include "shared/codec/entropy/index_coder.hpp"

#include "tests/codec/codec_support.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/codec/blocks/selector.hpp"

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

using Indices = std::vector<std::uint32_t>;

Indices random_set(std::size_t n, std::size_t k, std::uint64_t seed = 1) {
  std::vector<std::uint32_t> room;
  const auto indices = random_indices(seed, n, k, room);
  return {indices.begin(), indices.end()};
}

// k indices in evenly spread runs of length `run`. Requires run <= k <= n / 2, or run = k.
Indices clustered_set(std::size_t n, std::size_t k, std::size_t run) {
  Indices out;
  const std::size_t runs = (k + run - 1) / run;
  for (std::size_t i = 0; i < k; ++i) {
    out.push_back(static_cast<std::uint32_t>(i / run * (n / runs) + i % run));
  }
  return out;
}

std::vector<std::byte> coded(const Indices& indices, std::size_t n) {
  std::vector<std::byte> out;
  EncodeScratch scratch;
  append_indices(indices, n, scratch, out);
  return out;
}

double log2_choose(std::size_t n, std::size_t k) {
  const auto log_factorial = [](std::size_t m) { return std::lgamma(static_cast<double>(m) + 1); };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::log(2.0);
}

// Whether the bytes, followed by others, decode to the indices and the decoder finds their end.
bool comes_back(const std::vector<std::byte>& bytes, const Indices& indices, std::size_t n) {
  std::vector<std::byte> longer = bytes;
  longer.resize(bytes.size() + 9, std::byte{0xff});
  Indices back(indices.size());
  DecodeScratch scratch;
  return read_indices(bytes, n, scratch, back) == bytes.size() && back == indices &&
         read_indices(longer, n, scratch, back) == bytes.size() && back == indices;
}

}  // namespace

TEST_CASE("every index set decodes to itself and takes no more than its bitmap") {
  for (const std::size_t n : {2u, 3u, 7u, 8u, 9u, 100u, 1000u, 1024u, 5003u, 65536u}) {
    for (const std::size_t part : {1000u, 100u, 20u, 10u, 5u, 3u, 2u, 1u}) {
      const std::size_t k = std::clamp<std::size_t>(n / part, 1, n - 1);
      CAPTURE(n);
      CAPTURE(k);
      std::vector<Indices> sets = {random_set(n, k)};
      if (k <= n / 2) {
        sets.push_back(clustered_set(n, k, 1));
        sets.push_back(clustered_set(n, k, std::min<std::size_t>(k, 30)));
      }
      sets.push_back(clustered_set(n, k, k));  // At the beginning and at the end.
      sets.push_back(sets.back());
      for (auto& index : sets.back()) index += static_cast<std::uint32_t>(n - k);
      for (const Indices& set : sets) {
        const auto bytes = coded(set, n);
        CHECK(bytes.size() <= index_bytes_max(n));
        CHECK(comes_back(bytes, set, n));
      }
    }
  }
}

TEST_CASE("random indices take at most 3% more than log2 C(n, k) bits, plus up to 5 bytes") {
  for (const double density : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3,
                               0.35, 0.382, 0.4, 0.45, 0.5, 0.6, 0.75, 0.9}) {
    for (const std::size_t n : {1024u, 10'000u, 65536u}) {
      const auto k =
          std::max<std::size_t>(1, static_cast<std::size_t>(density * static_cast<double>(n)));
      for (const std::uint64_t seed : {1u, 2u, 3u}) {
        CAPTURE(n);
        CAPTURE(k);
        const auto bytes = static_cast<double>(coded(random_set(n, k, seed), n).size());
        const double least = log2_choose(n, k) / 8;
        CHECK(bytes > least - 1);
        if (k >= 500 && n == 65536 && density <= 0.5) CHECK(bytes <= 1.03 * least);
        // The nibble code begins with 128 bytes, so dense sets in small blocks take more.
        if (density <= 0.3) CHECK(bytes <= 1.03 * least + 5);
      }
    }
  }
}

TEST_CASE("clustered indices take less than random ones") {
  for (const std::size_t k : {6553u, 20'000u}) {
    const auto least = static_cast<std::size_t>(log2_choose(65536, k) / 8);
    CHECK(coded(clustered_set(65536, k, 100), 65536).size() < least / 2);
  }
}

TEST_CASE("each form of index code has the specified bytes") {
  // A Golomb code with parameter 5 for the gaps 3, 0 and 9. Quotients: 0, 0 and 1. Remainders: 3, 0
  // and 4; 0 to 2 take two bits, 3 is 110 and 4 is 111. In order: 0 110, 0 00, 10 111.
  CHECK(comes_back({std::byte{5}, std::byte{0}, std::byte{0b1000'0110}, std::byte{0b1110}},
                   {3, 4, 14}, 64));
  const auto bitmap = coded({0, 3, 4, 8}, 9);
  CHECK(bitmap == std::vector{std::byte{0}, std::byte{0}, std::byte{0b11001}, std::byte{1}});
  // One index, 20, among 64 elements.
  const auto golomb = coded({20}, 64);
  CHECK(golomb.size() == 3);
  const auto nibbles = coded(random_set(65536, 25'000), 65536);
  CHECK(load<std::uint16_t>(nibbles) == 0xffff);
  CHECK(load<std::uint16_t>(nibbles, 2) == nibbles.size() - 4);
}

TEST_CASE("decoded indices ascend and are below n, whatever the bytes; cut bytes are refused") {
  const auto check = [](const std::vector<std::byte>& bytes, std::size_t n, std::size_t k) {
    Indices out(k);
    DecodeScratch scratch;
    const auto taken = read_indices(bytes, n, scratch, out);
    if (!taken) return false;
    REQUIRE(*taken <= bytes.size());
    REQUIRE(out.back() < n);
    REQUIRE(std::ranges::adjacent_find(out, std::ranges::greater_equal{}) == out.end());
    return true;
  };
  for (const std::size_t k : {1u, 30u, 300u, 400u, 500u}) {
    const auto bytes = coded(random_set(1001, k), 1001);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const std::vector<std::byte> cut(bytes.begin(),
                                       bytes.begin() + static_cast<std::ptrdiff_t>(size));
      CHECK_FALSE(check(cut, 1001, k));
    }
    auto flipped = bytes;
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      flipped[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      check(flipped, 1001, k);
      flipped[bit / 8] = bytes[bit / 8];
    }
  }
  std::vector<std::byte> ones(70'000, std::byte{0xff});
  for (const int form : {0, 1, 2, 1000, 0xfffe, 0xffff}) {
    store(ones, 0, static_cast<std::uint16_t>(form));
    CHECK_FALSE(check(ones, 1001, 30));
  }
  // A bitmap with one index more or less, and with one beyond n.
  const auto bitmap = coded({0, 3, 4, 8}, 9);
  REQUIRE(load<std::uint16_t>(bitmap) == 0);
  CHECK_FALSE(check(bitmap, 9, 3));
  CHECK_FALSE(check(bitmap, 9, 5));
  CHECK_FALSE(check(bitmap, 8, 4));
  // As many indices as there should be, but the last one is at or beyond n, in the bitmap's last
  // byte.
  for (const int last : {9, 10, 15}) {
    CAPTURE(last);
    CHECK_FALSE(
        check({std::byte{0}, std::byte{0}, std::byte{0b11001}, std::byte(1 << (last - 8))}, 9, 4));
  }
  CHECK(check({std::byte{0}, std::byte{0}, std::byte{0b11001}, std::byte{1}}, 9, 4));
}
