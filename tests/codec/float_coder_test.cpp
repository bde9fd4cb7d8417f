// SPDX-License-Identifier: Apache-2.0
// The lossless coder for floating-point numbers: every bit comes back, the code is near the
// entropy, and damaged bytes are refused.
#include "shared/codec/entropy/float_coder.hpp"

#include "tests/codec/codec_support.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

std::vector<std::uint32_t> bits_of(std::span<const float> x) {
  std::vector<std::uint32_t> bits;
  for (const float v : x) bits.push_back(std::bit_cast<std::uint32_t>(v));
  return bits;
}

/// The entropy of all words in bits, if only the upper `upper` bits of each are not uniform.
double entropy_of(std::span<const std::uint32_t> words, int upper) {
  std::map<std::uint32_t, double> counts;
  for (const std::uint32_t word : words) ++counts[word >> (32 - upper)];
  double bits = 0;
  const auto n = static_cast<double>(words.size());
  for (const auto& [word, count] : counts) bits -= count * std::log2(count / n);
  return bits + n * (32 - upper);
}

std::vector<std::vector<float>> awkward(std::size_t n) {
  using Limits = std::numeric_limits<float>;
  std::vector<std::vector<float>> all = {normal(n, 1),
                                         normal(n, 2, 1e-40f),
                                         normal(n, 3, 1e37f),
                                         std::vector<float>(n),
                                         std::vector<float>(n, -0.0f),
                                         std::vector<float>(n, Limits::max()),
                                         std::vector<float>(n, -Limits::denorm_min())};
  // All exponents.
  auto wide = normal(n, 4);
  for (std::size_t i = 0; i < n; ++i)
    wide[i] = std::ldexp(wide[i] / 7, static_cast<int>(i % 256) - 128);
  all.push_back(wide);
  // Zeros of both signs among other values.
  auto zeros = normal(n, 5);
  for (std::size_t i = 0; i < n; i += 3) zeros[i] = i % 2 == 0 ? 0.0f : -0.0f;
  all.push_back(zeros);
  auto two = std::vector<float>(n, 1e-38f);
  two[n / 2] = -3e38f;
  all.push_back(two);
  return all;
}

}  // namespace

TEST_CASE("lossless gives every bit back and is never longer than fp32") {
  for (const std::size_t n : {1u, 2u, 31u, 3072u, 3073u, 70'000u}) {
    const Layout layout = flat_layout(static_cast<std::int64_t>(n));
    for (const auto& x : awkward(n)) {
      const auto payload = encode(*codec_of("lossless"), layout, x);
      CHECK(bits_of(decode(payload, layout)) == bits_of(x));
      CHECK(payload.size() <= encode(*codec_of("none"), layout, x).size());
    }
  }
  CHECK(codec_of("lossless")->is_exact());
  CHECK(codec_of("lossless+ef")->is_exact());
}

TEST_CASE("entropy-coded fp16 and bf16 blocks decode to the same values as plain ones") {
  for (const char* spec : {"fp16", "bf16"}) {
    CAPTURE(std::string(spec));
    for (const std::size_t n : {3u, 31u, 3072u, 3073u, 70'000u}) {
      const Layout layout = flat_layout(static_cast<std::int64_t>(n));
      for (auto x : awkward(n)) {
        for (float& v : x) v = std::clamp(v, -65504.0f, 65504.0f);
        std::vector<std::uint16_t> halves(n);
        std::vector<float> wanted(n);
        if (std::string_view(spec) == "fp16") {
          kernels().to_half(x.data(), n, halves.data());
          kernels().from_half(halves.data(), n, wanted.data());
        } else {
          kernels().to_bf16(x.data(), n, halves.data());
          kernels().from_bf16(halves.data(), n, wanted.data());
        }
        const auto payload = encode(*codec_of(spec), layout, x);
        CHECK(bits_of(decode(payload, layout)) == bits_of(wanted));
        CHECK(payload.size() <= codec_of(spec)->payload_bytes_max(layout));
      }
    }
  }
}

TEST_CASE("coded floats are within 3% of their entropy, with any share of zeros" * statistics) {
  constexpr std::size_t n = 1 << 20;
  const Layout layout = flat_layout(n);
  for (const auto& plain : {normal(n, 6, 0.01f), laplace(n, 7)}) {
    for (const double zeros : {0.0, 0.02, 0.3, 0.9, 0.99}) {
      CAPTURE(zeros);
      auto x = plain;
      const auto draws = normal(n, 8);
      // A normal value is above `from` with the probability `zeros`.
      const double from = std::sqrt(2.0) * [zeros] {
        double low = -6;
        double high = 6;
        for (int i = 0; i < 60; ++i) {
          const double middle = (low + high) / 2;
          (0.5 * std::erfc(middle) > zeros ? low : high) = middle;
        }
        return low;
      }();
      for (std::size_t i = 0; i < n; ++i) {
        if (static_cast<double>(draws[i]) > from) x[i] = 0;
      }
      // Count only the upper three bits of each mantissa: the lower bits are nearly uniform.
      auto words = bits_of(x);
      std::vector<std::uint32_t> others;
      for (const std::uint32_t word : words) {
        if (word != 0) others.push_back(word);
      }
      const double share = static_cast<double>(others.size()) / n;
      double bits = entropy_of(others, 12);
      if (share < 1) bits -= n * (share * std::log2(share) + (1 - share) * std::log2(1 - share));
      const auto payload = encode(*codec_of("lossless"), layout, x);
      CHECK(8 * static_cast<double>(payload.size()) < 1.03 * bits);
    }
    for (const char* spec : {"fp16", "bf16"}) {
      CAPTURE(std::string(spec));
      const auto back = decode(encode(*codec_of(spec), layout, plain), layout);
      const int unused = std::string_view(spec) == "fp16" ? 13 : 16;
      const double bits = entropy_of(bits_of(back), 12) - static_cast<double>(n) * unused;
      CHECK(8 * static_cast<double>(encode(*codec_of(spec), layout, plain).size()) < 1.03 * bits);
    }
  }
}

TEST_CASE("every kernel row codes and decodes floats to the same bits") {
  const Layout layout = layout_of({{"a", {300, 333}}, {"b", {999}}});
  const std::vector<float> x = normal(layout.elements(), 8);
  for (const char* spec : {"lossless", "fp16", "bf16", "topk:0.1"})
    check_rows_agree(spec, layout, x);
}

TEST_CASE("damaged float blocks are refused") {
  const std::vector<float> x = normal(4000, 9);
  const Layout layout = flat_layout(4000);
  const auto payload = encode(*codec_of("lossless"), layout, x);
  const std::vector<std::byte> good(payload.begin() + payload_header_bytes + 4, payload.end());
  REQUIRE(good[0] == static_cast<std::byte>(BlockFormat::fp32_coded));
  std::vector<float> out(x.size());
  DecodeScratch scratch;
  CHECK(decode_block(good, out, scratch).has_value());
  const auto reason = [&](const std::vector<std::byte>& block) {
    const auto decoded = decode_block(block, out, scratch);
    REQUIRE_FALSE(decoded.has_value());
    CHECK(decoded.error().code() == Errc::corrupt);
    return decoded.error().message();
  };
  const auto with = [&](std::size_t at, std::uint8_t value) {
    auto bad = good;
    bad[at] = static_cast<std::byte>(value);
    return bad;
  };
  CHECK(reason({good.begin(), good.begin() + 11'999}) == "the mantissas are cut off");
  CHECK(reason({good.begin(), good.end() - 1}) == "the exponents are damaged");
  CHECK(reason(with(2, 0)) == "exponents up to 0 from the base");
  CHECK(reason(with(2, 128)) == "exponents up to 128 from the base");
  CHECK(reason(with(1, 1)).starts_with("exponents from -"));
  CHECK(reason(with(1, 255)).find("to 25") != std::string::npos);
}
