// SPDX-License-Identifier: Apache-2.0
// Compares every row with the scalar row, bit for bit, and the scalar row with the contracts in
// kernels.hpp.
#include "kernels/kernels.hpp"
#include "kernels/generic/element_math.hpp"
#include "kernels/generic/philox.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

namespace {

using namespace fl;

const Kernels& plain() { return *all_kernels().front(); }

constexpr std::size_t sizes[] = {0,  1,  2,  3,  7,   8,    9,    15,   16,   17,
                                 31, 32, 33, 63, 255, 1023, 1024, 1025, 65537};

// Values of many magnitudes below 2^20 and both signs, also zeros and denormals.
std::vector<float> values(std::size_t n, std::uint64_t seed) {
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const philox::Block block = philox::block_at(seed, 0, i);
    const std::uint32_t* word = block.word;
    const auto mantissa = static_cast<float>(static_cast<std::int32_t>(word[0])) * 0x1p-31f;
    out[i] = word[1] % 16 == 0 ? (word[2] % 2 == 0 ? 0.0f : -1e-41f)
                               : std::ldexp(mantissa, static_cast<int>(word[1] % 40) - 20);
  }
  return out;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("philox gives the known answers of its authors' library") {
  const auto words = [](philox::Block counter, std::uint32_t key_0, std::uint32_t key_1) {
    const philox::Block out = philox::generate(counter, key_0, key_1);
    return std::vector<std::uint32_t>(out.word, out.word + 4);
  };
  using Words = std::vector<std::uint32_t>;
  CHECK(words({{0, 0, 0, 0}}, 0, 0) == Words{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48});
  CHECK(words({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff) ==
        Words{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662});
  CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
        Words{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a});
}

TEST_CASE("a line of random words has the words of its elements, in order") {
  std::uint32_t line[philox::line_elements];
  philox::fill_line(7, 9, 123, line);
  for (std::uint64_t i = 0; i < philox::line_elements; ++i) {
    const std::uint64_t element = 123 * philox::line_elements + i;
    const philox::Block block = philox::block_at(7, 9, philox::counter_of(element));
    CHECK(line[i] == block.word[philox::word_of(element)]);
  }
}

TEST_CASE("half precision: every row converts all 65,536 halves to float and back") {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> reference(halves.size());
  plain().from_half(halves.data(), halves.size(), reference.data());
  CHECK(reference[0x3c00] == 1.0f);
  CHECK(reference[0xfbff] == -65504.0f);
  CHECK(reference[0x0001] == 0x1p-24f);
  CHECK(std::isinf(reference[0x7c00]));
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    std::vector<float> floats(halves.size());
    std::vector<std::uint16_t> back(halves.size());
    row->from_half(halves.data(), halves.size(), floats.data());
    CHECK(same_bits(floats, reference));
    row->to_half(floats.data(), floats.size(), back.data());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const bool nan = (i & 0x7fff) > 0x7c00;
      const std::size_t wanted = nan ? i | 0x200 : i;  // NaNs become quiet.
      if (back[i] != wanted) FAIL("half ", i, " came back as ", back[i]);
    }
  }
}

TEST_CASE("half precision: every row rounds every 251st float the same, to nearest even") {
  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits <= 0xffffffff; bits += 251) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  std::vector<std::uint16_t> reference(floats.size());
  plain().to_half(floats.data(), floats.size(), reference.data());
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    std::vector<std::uint16_t> out(floats.size());
    row->to_half(floats.data(), floats.size(), out.data());
    CHECK(same_bits(out, reference));
  }
  const auto half = [](float x) {
    std::uint16_t out;
    plain().to_half(&x, 1, &out);
    return out;
  };
  CHECK(half(1.0f + 0x1p-11f) == 0x3c00);      // Halfway: down to even.
  CHECK(half(1.0f + 3 * 0x1p-11f) == 0x3c02);  // Halfway: up to even.
  CHECK(half(1.0f + 0x1.004p-11f) == 0x3c01);  // Just above halfway.
  CHECK(half(65519.99f) == 0x7bff);
  CHECK(half(65520.0f) == 0x7c00);
  CHECK(half(0x1p-25f) == 0);  // Half of the smallest number: to even.
  CHECK(half(0x1.8p-24f) == 2);
}

TEST_CASE("bfloat16: every row converts all 65,536 codes except NaNs to float and back") {
  std::vector<std::uint16_t> codes;
  std::vector<float> wanted;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    if ((i & 0x7fff) > 0x7f80) continue;
    codes.push_back(static_cast<std::uint16_t>(i));
    wanted.push_back(std::bit_cast<float>(i << 16));
  }
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    std::vector<float> floats(codes.size());
    std::vector<std::uint16_t> back(codes.size());
    row->from_bf16(codes.data(), codes.size(), floats.data());
    CHECK(same_bits(floats, wanted));
    row->to_bf16(floats.data(), floats.size(), back.data());
    CHECK(same_bits(back, codes));
  }
}

TEST_CASE("bfloat16: every 251st float rounds to the nearest code, halfway to even") {
  std::vector<float> floats;
  std::vector<std::uint16_t> wanted;
  const auto add = [&](std::uint32_t magnitude, std::uint32_t sign) {
    floats.push_back(std::bit_cast<float>(magnitude | sign));
    // Bits order like magnitudes, so the two codes around a number are known. After the largest
    // number comes infinity, which has the place of 2^128.
    const std::uint32_t below = magnitude >> 16;
    const std::uint32_t above_half = magnitude & 0xffff;
    const bool up = above_half > 0x8000 || (above_half == 0x8000 && below % 2 == 1);
    wanted.push_back(static_cast<std::uint16_t>((below + (up ? 1 : 0)) | sign >> 16));
  };
  for (std::uint32_t magnitude = 0; magnitude <= 0x7f800000; magnitude += 251) {
    add(magnitude, magnitude % 2 == 0 ? 0 : 0x80000000);
  }
  for (std::uint32_t below = 0; below < 0x7f80; ++below) {
    for (const std::uint32_t rest : {0x7fffu, 0x8000u, 0x8001u}) add(below << 16 | rest, 0);
  }
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    std::vector<std::uint16_t> out(floats.size());
    row->to_bf16(floats.data(), floats.size(), out.data());
    CHECK(same_bits(out, wanted));
  }
  const auto code = [](float x) {
    std::uint16_t out;
    plain().to_bf16(&x, 1, &out);
    return out;
  };
  CHECK(code(1.0f + 0x1p-8f) == 0x3f80);      // Halfway: down to even.
  CHECK(code(1.0f + 3 * 0x1p-8f) == 0x3f82);  // Halfway: up to even.
  CHECK(code(0x1.fep127f) == 0x7f7f);         // The largest number.
  CHECK(code(0x1.ffp127f) == 0x7f80);
}

TEST_CASE("range: rows agree, a zero is +0, both ends are found at any place") {
  for (const std::size_t n : sizes) {
    if (n == 0) continue;
    const std::vector<float> x = values(n, n + 3);
    const auto [least, most] = std::ranges::minmax(x);
    for (const Kernels* row : all_kernels()) {
      const Range range = row->range(x.data(), n);
      CHECK(range.min == least);
      CHECK(range.max == most);
    }
  }
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    for (std::size_t place = 0; place < 70; ++place) {
      std::vector<float> x(70, -2.5f);
      x[place] = -3.0f;
      x[69 - place] = 7.0f;
      const Range range = row->range(x.data(), x.size());
      CHECK(range.min == -3.0f);
      CHECK(range.max == 7.0f);
    }
    for (const float zero : {0.0f, -0.0f}) {
      const std::vector<float> zeros(33, zero);
      CHECK_FALSE(std::signbit(row->range(zeros.data(), zeros.size()).min));
      CHECK_FALSE(std::signbit(row->range(zeros.data(), zeros.size()).max));
    }
  }
}

TEST_CASE("signs: rows agree on bits and sum, and zeros of both signs are not negative") {
  for (const std::size_t n : sizes) {
    const std::vector<float> x = values(n, n + 4);
    std::vector<std::uint8_t> wanted((n + 7) / 8);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (x[i] < 0) wanted[i / 8] = static_cast<std::uint8_t>(wanted[i / 8] | 1 << i % 8);
      sum += std::fabs(static_cast<double>(x[i]));
    }
    std::vector<std::uint8_t> plain_bits((n + 7) / 8);
    const double plain_sum = plain().pack_signs(x.data(), n, plain_bits.data());
    CHECK(std::fabs(plain_sum - sum) <= sum * 1e-12);
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      CAPTURE(n);
      std::vector<std::uint8_t> bits((n + 7) / 8, 0xff);
      const double row_sum = row->pack_signs(x.data(), n, bits.data());
      CHECK(std::memcmp(&row_sum, &plain_sum, sizeof row_sum) == 0);
      CHECK(same_bits(bits, wanted));
      std::vector<float> out(n);
      row->unpack_signs(bits.data(), n, 0.75f, out.data());
      for (std::size_t i = 0; i < n; ++i) {
        if (out[i] != (x[i] < 0 ? -0.75f : 0.75f)) FAIL("element ", i, " is ", out[i]);
      }
    }
  }
  const std::vector<float> zeros = {0.0f, -0.0f, -1e-45f, 1e-45f};
  for (const Kernels* row : all_kernels()) {
    std::uint8_t bits = 0xff;
    CHECK(row->pack_signs(zeros.data(), zeros.size(), &bits) == 0x1p-148);
    CHECK(bits == 0b0100);
  }
}

TEST_CASE("scan: rows agree, and the sum is right") {
  for (const std::size_t n : sizes) {
    const std::vector<float> x = values(n + 3, n);
    for (std::size_t offset = 0; offset < 4; ++offset) {  // Not aligned for vectors.
      CAPTURE(n);
      const float* begin = x.data() + offset;
      const Scan reference = plain().scan(begin, n);
      double sum = 0;
      float largest = 0;
      for (std::size_t i = 0; i < n; ++i) {
        sum += static_cast<double>(begin[i]) * begin[i];
        largest = std::max(largest, std::fabs(begin[i]));
      }
      CHECK(reference.first_bad == n);
      CHECK(reference.max_abs == largest);
      CHECK(reference.sum_squares == doctest::Approx(sum).epsilon(1e-12));
      for (const Kernels* row : all_kernels()) {
        const Scan other = row->scan(begin, n);
        CHECK(other.first_bad == n);
        CHECK(other.max_abs == reference.max_abs);
        CHECK(std::bit_cast<std::uint64_t>(other.sum_squares) ==
              std::bit_cast<std::uint64_t>(reference.sum_squares));
      }
    }
  }
}

TEST_CASE("scan finds the first NaN or infinity at any place") {
  const float bad[] = {
      std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const Kernels* row : all_kernels()) {
    for (const float value : bad) {
      for (std::size_t place = 0; place < 70; ++place) {
        std::vector<float> x(70, 1.5f);
        x[place] = value;
        x[69] = value;
        const Scan scan = row->scan(x.data(), x.size());
        CHECK(scan.first_bad == place);
        CHECK(scan.sum_squares == 0.0);
      }
    }
  }
}

TEST_CASE(
    "add_rounded: rows agree, round to nearest even, and a negative factor restores the sum") {
  for (const std::size_t n : sizes) {
    const std::vector<float> x = values(n, n + 1);
    // The last two make products of up to 62 bits.
    const double most = 0x1p62 / double{plain().scan(x.data(), n).max_abs};
    for (const double factor : {1.0, -1.0, 0.3, 600 * 0x1p30, most, -most / 3}) {
      CAPTURE(factor);
      std::vector<std::int64_t> start(n);
      for (std::size_t i = 0; i < n; ++i) {
        start[i] = static_cast<std::int64_t>(i * 0x9E3779B97F4A7C15ull);
      }
      std::vector<std::int64_t> reference = start;
      plain().add_rounded(reference.data(), x.data(), n, factor);
      for (const Kernels* row : all_kernels()) {
        CAPTURE(row->name);
        std::vector<std::int64_t> sum = start;
        row->add_rounded(sum.data(), x.data(), n, factor);
        CHECK(same_bits(sum, reference));
        row->add_rounded(sum.data(), x.data(), n, -factor);
        CHECK(same_bits(sum, start));
      }
    }
  }
  const std::vector<float> x = {0.5f,   1.5f,    -0.5f,           -1.5f,     0.75f,   -2.5f,
                                1e-30f, 0x1p61f, -0x1.fffffep60f, 0x1.8p31f, 0x1p62f, -0x1p62f};
  const std::vector<std::int64_t> wanted = {
      0, 2, 0, -2, 1, -2, 0, 1ll << 61, -(0xffffffll << 37), 3ll << 30, 1ll << 62, -(1ll << 62)};
  for (const Kernels* row : all_kernels()) {
    CAPTURE(row->name);
    std::vector<std::int64_t> sum(x.size());
    row->add_rounded(sum.data(), x.data(), x.size(), 1);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      CAPTURE(i);
      CHECK(sum[i] == wanted[i]);
    }
  }
}

TEST_CASE("scale_fixed: rows agree for all kinds of sums, and round each step once") {
  std::vector<std::int64_t> sum = {0,
                                   1,
                                   -1,
                                   (1ll << 53) + 1,
                                   -(1ll << 53) - 1,
                                   1ll << 62,
                                   std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::min()};
  for (std::uint64_t i = 0; i < 4001; ++i) {
    const philox::Block block = philox::block_at(5, 5, i);
    const std::uint32_t* word = block.word;
    const std::uint64_t bits = std::uint64_t{word[0]} << 32 | word[1];
    sum.push_back(static_cast<std::int64_t>(bits) >> word[2] % 64);
  }
  for (const Kernels* row : all_kernels()) {
    std::vector<float> out(sum.size());
    row->scale_fixed(sum.data(), sum.size(), 1.0 / 3.0, out.data());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto wanted = static_cast<float>(static_cast<double>(sum[i]) * (1.0 / 3.0));
      if (out[i] != wanted) FAIL(row->name, ": ", sum[i], " gave ", out[i]);
    }
  }
}

TEST_CASE("random_words: every row gives each element its word") {
  for (const std::size_t n : sizes) {
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      std::vector<std::uint32_t> out(n);
      row->random_words(0xfedcba9876543210, 0x1234567890, out.data(), n);
      for (std::uint64_t i = 0; i < n; ++i) {
        const philox::Block block =
            philox::block_at(0xfedcba9876543210, 0x1234567890, philox::counter_of(i));
        if (out[i] != block.word[philox::word_of(i)]) FAIL("element ", i);
      }
    }
  }
}

TEST_CASE("quantize and dequantize: rows agree for any length and place in the stream") {
  for (const std::size_t n : sizes) {
    const std::vector<float> x = values(n, n + 2);
    const float scale = std::max(plain().scan(x.data(), n).max_abs, 1e-30f);
    for (const std::int32_t levels : {1, 2, 7, 127, 1000, 32767}) {
      for (const std::uint64_t first : {0ull, 1ull, 31ull, 0xfffffffeull, 0x7fffffffffff000ull}) {
        const QuantizeArgs args = {
            .scale = scale, .levels = levels, .seed = 11, .stream = 3, .first = first};
        std::vector<std::int16_t> reference(n);
        plain().quantize(x.data(), n, args, reference.data());
        for (const Kernels* row : all_kernels()) {
          CAPTURE(row->name);
          std::vector<std::int16_t> out(n);
          row->quantize(x.data(), n, args, out.data());
          CHECK(same_bits(out, reference));
        }
      }
    }
    std::vector<std::int16_t> levels(n);
    for (std::size_t i = 0; i < n; ++i) levels[i] = static_cast<std::int16_t>(i * 40503);
    std::vector<float> reference(n);
    plain().dequantize(levels.data(), n, 0.1f, reference.data());
    for (const Kernels* row : all_kernels()) {
      std::vector<float> out(n);
      row->dequantize(levels.data(), n, 0.1f, out.data());
      CHECK(same_bits(out, reference));
    }
  }
}

TEST_CASE("quantize: every row clamps values to the scale") {
  const std::vector<float> x = values(1025, 5);
  const QuantizeArgs args = {.scale = 0.25f, .levels = 7, .seed = 2, .stream = 1, .first = 3};
  std::vector<float> clipped = x;
  for (float& v : clipped) v = std::clamp(v, -args.scale, args.scale);
  CHECK_FALSE(same_bits(clipped, x));
  std::vector<std::int16_t> wanted(x.size());
  plain().quantize(clipped.data(), x.size(), args, wanted.data());
  for (const Kernels* row : all_kernels()) {
    std::vector<std::int16_t> out(x.size());
    row->quantize(x.data(), x.size(), args, out.data());
    CHECK(same_bits(out, wanted));
  }
}

TEST_CASE("quantize: an element alone gives the same, and x = scale gets the last level") {
  constexpr std::size_t n = 200;
  for (const float scale : {0x1p-149f, 0x1.8p-65f, 1e-30f, 0.3f, 0x1.fffffep127f}) {
    std::vector<float> x = values(n, 6);
    const float most = plain().scan(x.data(), n).max_abs;
    for (float& v : x) v = v / most * scale;
    x[7] = scale;
    x[8] = -scale;
    for (const std::int32_t levels : {1, 127, 32767}) {
      const element::QuantizeFactors factors = element::quantize_factors(scale, levels);
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const QuantizeArgs args = {
            .scale = scale, .levels = levels, .seed = seed, .stream = 5, .first = 77};
        std::vector<std::int16_t> wanted(n);
        for (std::size_t i = 0; i < n; ++i) {
          const std::uint32_t noise = philox::half_word_at(seed, 5, 77 + i);
          wanted[i] = static_cast<std::int16_t>(
              element::quantize<element::Scalar>(x[i], static_cast<std::int32_t>(noise), factors));
        }
        CHECK(wanted[7] == levels);
        CHECK(wanted[8] == -levels);
        for (const Kernels* row : all_kernels()) {
          CAPTURE(row->name);
          std::vector<std::int16_t> out(n);
          row->quantize(x.data(), n, args, out.data());
          CHECK(same_bits(out, wanted));
        }
      }
    }
  }
}

TEST_CASE("quantize: a level is one of the two nearest, and the mean over seeds is the value") {
  const std::vector<float> x = {0.0f, 1.0f, -1.0f, 0.3f, -0.3f, 0.999f, 1e-3f, -0.0f};
  constexpr int seeds = 4096;
  for (const std::int32_t levels : {1, 5, 127, 32767}) {
    std::vector<double> sum(x.size());
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      std::vector<std::int16_t> out(x.size());
      kernels().quantize(x.data(), x.size(),
                         {.scale = 1.0f, .levels = levels, .seed = seed, .stream = 0, .first = 0},
                         out.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        CHECK(std::fabs(out[i] - static_cast<double>(x[i]) * levels) < 1.0);
        sum[i] += out[i];
      }
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double place = static_cast<double>(x[i]) * levels;
      const double fraction = std::fabs(place - std::trunc(place));
      const double sigma = std::sqrt(fraction * (1 - fraction) / seeds);
      CHECK(std::fabs(sum[i] / seeds - place) <= 5 * sigma + 1e-3 / 4096);
    }
  }
}

TEST_CASE("dot and add_scaled: rows agree, and the sums are right") {
  for (const std::size_t n : sizes) {
    CAPTURE(n);
    const std::vector<float> x = values(n, 31);
    const std::vector<float> y = values(n, 32);
    double exact = 0;
    double size = 0;
    for (std::size_t i = 0; i < n; ++i) {
      exact += static_cast<double>(x[i]) * y[i];
      size += std::fabs(static_cast<double>(x[i]) * y[i]);
    }
    const float wanted = plain().dot(x.data(), y.data(), n);
    CHECK(std::fabs(wanted - exact) <= size * 1e-5);
    std::vector<float> sum = values(n, 33);
    for (std::size_t i = 0; i < n; ++i) sum[i] += x[i] * 0.37f;
    for (const Kernels* row : all_kernels()) {
      CAPTURE(row->name);
      CHECK(std::bit_cast<std::uint32_t>(row->dot(x.data(), y.data(), n)) ==
            std::bit_cast<std::uint32_t>(wanted));
      std::vector<float> out = values(n, 33);
      row->add_scaled(out.data(), x.data(), n, 0.37f);
      CHECK(same_bits(out, sum));
    }
  }
}

TEST_CASE("dither, undither and round: rows agree for any length and place in the stream") {
  for (const std::size_t n : sizes) {
    const std::vector<float> x = values(n, n + 3);
    for (const float step : {0x1p-126f, 1e-5f, 0.7f, 0x1p121f}) {
      std::vector<std::int16_t> reference(n);
      const std::int32_t largest = plain().round(x.data(), n, step, reference.data());
      for (const Kernels* row : all_kernels()) {
        CAPTURE(row->name);
        std::vector<std::int16_t> out(n);
        CHECK(row->round(x.data(), n, step, out.data()) == largest);
        CHECK(same_bits(out, reference));
      }
      for (const std::uint64_t first : {0ull, 64ull, 77ull, 0x7fffffffffff000ull}) {
        const DitherArgs args = {.step = step, .key = 0xfedcba9876543210, .first = first};
        std::vector<float> back(n);
        const std::int32_t most = plain().dither(x.data(), n, args, reference.data(), nullptr);
        plain().undither(reference.data(), n, args, back.data());
        for (const Kernels* row : all_kernels()) {
          CAPTURE(row->name);
          std::vector<std::int16_t> out(n);
          std::vector<float> values_out(n);
          CHECK(row->dither(x.data(), n, args, out.data(), nullptr) == most);
          CHECK(same_bits(out, reference));
          row->undither(out.data(), n, args, values_out.data());
          CHECK(same_bits(values_out, back));
        }
      }
    }
  }
}

TEST_CASE("dither_classes: rows agree, and the class fits the dither") {
  for (const std::size_t n : sizes) {
    for (const std::uint64_t first : {0ull, 64ull, 77ull, 0x7fffffffffff000ull}) {
      DitherArgs args = {.step = 1, .key = 0xfedcba9876543210, .first = first};
      // For a level of 0 undither() gives u, up to its sign.
      std::vector<float> dither(n);
      plain().undither(std::vector<std::int16_t>(n).data(), n, args, dither.data());
      for (const int bits : {0, 1, 3, 7}) {
        args.class_bits = bits;
        std::vector<std::uint8_t> wanted(n);
        for (std::size_t i = 0; i < n; ++i) {
          wanted[i] = static_cast<std::uint8_t>(std::ldexp(std::fabs(dither[i]), bits + 1));
        }
        for (const Kernels* row : all_kernels()) {
          CAPTURE(row->name);
          std::vector<std::uint8_t> out(n);
          row->dither_classes(n, args, out.data());
          CHECK(out == wanted);
          std::vector<std::uint8_t> beside_levels(n);
          std::vector<std::int16_t> levels(n);
          row->dither(dither.data(), n, args, levels.data(), beside_levels.data());
          CHECK(beside_levels == wanted);
        }
      }
    }
  }
}

TEST_CASE("dither: the error is at most half a step, with mean 0 and mean square 1/12") {
  const std::vector<float> x = {0.0f, 1.0f, -1.0f, 0.3f, -0.3f, 0.5f, 1e-3f, -126.7f};
  constexpr int keys = 4096;
  constexpr double step = 0.25;
  std::vector<double> sum(x.size());
  std::vector<double> squares(x.size());
  for (std::uint64_t key = 0; key < keys; ++key) {
    const DitherArgs args = {.step = step, .key = key};
    std::vector<std::int16_t> levels(x.size());
    std::vector<float> back(x.size());
    kernels().dither(x.data(), x.size(), args, levels.data(), nullptr);
    kernels().undither(levels.data(), x.size(), args, back.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = (static_cast<double>(back[i]) - x[i]) / step;
      CHECK(std::fabs(error) < 0.5001);
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(std::fabs(sum[i] / keys) < 5 * std::sqrt(1.0 / 12 / keys));
    CHECK(std::fabs(squares[i] / keys - 1.0 / 12) < 5 * std::sqrt(1.0 / 180 / keys));
  }
}
