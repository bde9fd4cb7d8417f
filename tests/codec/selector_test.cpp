// SPDX-License-Identifier: Apache-2.0
// Selectors: topk selects exactly the largest, randk each element equally often, threshold no
// smaller magnitude. With error feedback nothing is lost.
#include "shared/codec/blocks/selector.hpp"

#include "tests/codec/codec_support.hpp"

#include "shared/codec/encode/feedback.hpp"
#include "shared/codec/entropy/index_coder.hpp"

#include <functional>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

const Layout& layout() {
  static const Layout some = layout_of(
      {{"a", {3000}}, {"small.bias", {100}}, {"b", {40, 50}}, {"bn.running_var", {1500}}});
  return some;
}

// Values with few different magnitudes, so that there are many ties.
std::vector<float> tied(std::size_t n, std::uint64_t seed) {
  std::vector<float> x = normal(n, seed);
  for (float& v : x) v = std::round(v * 3) * 0.5f;
  return x;
}

/// Sets all but the k largest magnitudes of x to 0. Keeps the first of equal ones.
void keep_largest(std::span<float> x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(k - 1),
                           [&](std::size_t a, std::size_t b) {
                             const float abs_a = std::fabs(x[a]);
                             const float abs_b = std::fabs(x[b]);
                             return abs_a > abs_b || (abs_a == abs_b && a < b);
                           });
  for (std::size_t i = k; i < order.size(); ++i) x[order[i]] = 0;
}

std::vector<float> sent(const char* spec, const Layout& of, std::span<const float> x,
                        std::uint64_t seed = 1, std::uint32_t block_elements = 256) {
  return decode(encode(*codec_of(spec), of, x, seed, block_elements), of);
}

std::size_t nonzeros(std::span<const float> x) {
  return static_cast<std::size_t>(std::ranges::count_if(x, [](float v) { return v != 0; }));
}

}  // namespace

TEST_CASE("topk sends exactly the largest values of each tensor, also with ties") {
  for (const auto& make : {std::function(tied), std::function([](std::size_t n, std::uint64_t s) {
                             return normal(n, s);
                           })}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const std::vector<float> x = make(layout().elements(), seed);
      std::vector<float> expected = x;  // Small tensors and statistics are sent completely.
      keep_largest(std::span(expected).first(3000), 211);          // ceil(0.0701 * 3000).
      keep_largest(std::span(expected).subspan(3100, 2000), 140);  // Not 141.
      CHECK(sent("topk:0.0701", layout(), x) != sent("topk:0.07", layout(), x));
      keep_largest(std::span(expected).first(3000), 210);
      CHECK(sent("topk:0.07", layout(), x) == expected);
      CHECK(sent("topk:0.07", layout(), x, 1, 65536) == expected);
    }
  }
}

TEST_CASE("topk with scope=global sends the largest values of all large tensors together") {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    std::vector<float> x = tied(layout().elements(), seed);
    for (std::size_t i = 0; i < 3000; ++i) x[i] *= 0.5f;
    std::vector<float> both(x.begin(), x.begin() + 3000);
    both.insert(both.end(), x.begin() + 3100, x.begin() + 5100);
    keep_largest(both, 500);
    std::vector<float> expected = x;
    std::copy_n(both.begin(), 3000, expected.begin());
    std::copy_n(both.begin() + 3000, 2000, expected.begin() + 3100);
    CHECK(sent("topk:0.1,scope=global", layout(), x) == expected);
  }
}

TEST_CASE("topk sends at least one element, no zeros, and with fraction 1 all other elements") {
  const Layout one = flat_layout(2000);
  std::vector<float> x(2000);
  CHECK(sent("topk:0.5", one, x) == x);
  x[7] = -1e-45f;
  x[1999] = 1;
  CHECK(sent("topk:0.5", one, x) == x);
  CHECK(nonzeros(sent("topk:0.0000001", one, x)) == 1);
  const std::vector<float> full = normal(2000, 3);
  CHECK(sent("topk:1", one, full) == full);
  const Layout empty = layout_of({{"e", {0}}});
  CHECK(sent("topk:0.5,dense_below=0", empty, {}).empty());
  CHECK(sent("topk:0.5,scope=global,dense_below=0", empty, {}).empty());
}

TEST_CASE("threshold sends exactly the magnitudes above the threshold") {
  const std::vector<float> x = tied(layout().elements(), 3);
  std::vector<float> expected = x;
  for (std::size_t i = 0; i < 5100; ++i) {
    if (std::fabs(x[i]) <= 1 && (i < 3000 || i >= 3100)) expected[i] = 0;
  }
  CHECK(nonzeros(expected) > 500);
  CHECK(sent("threshold:1", layout(), x) == expected);
  CHECK(sent("threshold:0", layout(), x) == x);
  CHECK(nonzeros(sent("threshold:-0", layout(), x)) == nonzeros(x));
  const Layout big = flat_layout(100'000);
  const std::vector<float> quiet(100'000, 0.5f);
  CHECK(nonzeros(sent("threshold:1", big, quiet, 1, 65536)) == 0);
  const auto payload = encode(*codec_of("threshold:1"), big, quiet);
  CHECK(payload.size() < 100);
}

TEST_CASE("ema-threshold first selects like topk and then about the same number of elements" *
          statistics) {
  const std::vector<float> x = tied(layout().elements(), 3);
  CHECK(sent("ema-threshold:0.07", layout(), x) == sent("topk:0.07", layout(), x));
  CHECK(sent("ema-threshold:1", layout(), x) == x);

  constexpr std::size_t n = 200'000;
  const Layout two = layout_of({{"a", {n}}, {"b", {n}}});
  // Tensors that grow or shrink by 1% in each round; one has heavy tails.
  for (const double fraction : {0.3, 0.1, 0.01, 0.001}) {
    CAPTURE(fraction);
    const auto codec = codec_of("ema-threshold:" + std::to_string(fraction));
    CodecState state;
    for (std::uint64_t round = 1; round <= 30; ++round) {
      CAPTURE(round);
      std::vector<float> update = normal(n, round, std::pow(1.01f, static_cast<float>(round)));
      const auto tail = laplace(n, 100 + round);
      for (const float v : tail) {
        update.push_back(v * std::pow(0.99f, static_cast<float>(round)));
      }
      std::vector<std::byte> payload;
      VectorSink sink(payload);
      codec->encode(two, update, round, sink, block_elements_default, &state).value();
      const auto back = decode(payload, two);
      for (const auto& part : {std::span(back).first(n), std::span(back).subspan(n)}) {
        const double density = static_cast<double>(nonzeros(part)) / n;
        CHECK(density == doctest::Approx(fraction).epsilon(0.2));
      }
      const std::string topk = "topk:" + std::to_string(fraction);
      if (round == 1) CHECK(back == sent(topk.c_str(), two, update, 1, 65536));
      state = CodecState::parse(state.bytes()).value();
    }
  }
}

TEST_CASE("ema-threshold computes a new threshold if the values jump or were all zeros") {
  constexpr std::size_t n = 20'000;
  const Layout one = flat_layout(n);
  const auto codec = codec_of("ema-threshold:0.01");
  CodecState state;
  const auto count = [&](const std::vector<float>& x) {
    std::vector<std::byte> payload;
    VectorSink sink(payload);
    codec->encode(one, x, 1, sink, block_elements_default, &state).value();
    return nonzeros(decode(payload, one));
  };
  CHECK(count(normal(n, 1)) == 200);
  CHECK(count(normal(n, 2, 100)) == 200);
  CHECK(count(normal(n, 3, 1e-20f)) == 200);
  CHECK(count(std::vector<float>(n)) == 0);
  CHECK(count(normal(n, 4)) == 200);
  CodecState zeros;
  std::swap(state, zeros);
  CHECK(count(std::vector<float>(n)) == 0);
  CHECK(count(normal(n, 5)) == 200);
}

TEST_CASE("randk sends exactly k scaled values of each block, which depend on the seed") {
  const Layout one = flat_layout(70'000);
  const std::vector<float> x = normal(70'000, 4);
  const std::vector<float> out = sent("randk:0.01", one, x, 5, 65536);
  CHECK(nonzeros(std::span(out).first(65536)) == 655);
  CHECK(nonzeros(std::span(out).subspan(65536)) == 45);
  for (std::size_t i = 0; i < 65536; ++i) {
    if (out[i] != 0) REQUIRE(out[i] == x[i] * (65536.0f / 655.0f));
  }
  CHECK(sent("randk:0.01", one, x, 5, 65536) == out);
  CHECK(sent("randk:0.01", one, x, 6, 65536) != out);
  // With error feedback the same elements are sent, not scaled.
  const std::vector<float> plain = sent("randk:0.01+ef", one, x, 5, 65536);
  for (std::size_t i = 0; i < plain.size(); ++i) REQUIRE(plain[i] == (out[i] != 0 ? x[i] : 0));
  // No indices are sent: two bytes for k, eight for the key, the values and their format id.
  const Layout block = flat_layout(65536);
  const auto payload = encode(*codec_of("randk:0.01"), block, std::span(x).first(65536));
  constexpr std::size_t before = payload_header_bytes + 4 + 1 + 2 + 8 + 1;
  CHECK(payload.size() < before + 655 * 4);
  CHECK(encode(*codec_of("randk:0.01+none"), block, std::span(x).first(65536)).size() ==
        before + 655 * 4);
}

TEST_CASE("randk is unbiased over 4,096 seeds, alone and with a quantizer" * statistics) {
  constexpr std::size_t n = 400;  // Two blocks.
  constexpr int seeds = 4096;
  const Layout one = flat_layout(n);
  const std::vector<float> x = normal(n, 9);
  for (const char* spec : {"randk:0.1,dense_below=0", "randk:0.3,dense_below=0+qsgd:2"}) {
    std::vector<double> sum(n);
    std::vector<double> squares(n);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const auto back = sent(spec, one, x, seed);
      for (std::size_t i = 0; i < n; ++i) {
        const double error = static_cast<double>(back[i]) - x[i];
        sum[i] += error;
        squares[i] += error * error;
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(std::fabs(sum[i] / seeds) <= 5 * std::sqrt(squares[i]) / seeds + 1e-6);
    }
  }
}

TEST_CASE("random indices are k of n: each index, and each pair of neighbours, is equally likely") {
  constexpr std::size_t n = 50;
  constexpr std::size_t k = 10;
  constexpr int keys = 20'000;
  std::vector<int> counts(n);
  int pairs = 0;
  std::vector<std::uint32_t> room;
  for (std::uint64_t key = 0; key < keys; ++key) {
    const auto indices = random_indices(key, n, k, room);
    REQUIRE(indices.size() == k);
    REQUIRE(indices.back() < n);
    REQUIRE(std::ranges::adjacent_find(indices, std::ranges::greater_equal{}) == indices.end());
    for (const std::uint32_t index : indices) ++counts[index];
    for (std::size_t i = 1; i < k; ++i) pairs += indices[i] == indices[i - 1] + 1 ? 1 : 0;
  }
  // Binomial counts with probability k / n for an index and k (k - 1) / (n (n - 1)) for a pair.
  const double sigma = std::sqrt(keys * 0.2 * 0.8);
  for (const int count : counts) CHECK(std::fabs(count - keys * 0.2) < 5 * sigma);
  const double pair = 10.0 * 9 / (50 * 49);
  CHECK(std::fabs(pairs - keys * 49 * pair) < 6 * std::sqrt(keys * 49 * pair));
}

TEST_CASE("with error feedback the sent values plus the residual are the input, bit for bit") {
  for (const char* spec : {"topk:0.01+ef", "topk:0.1,scope=global+ef", "randk:0.1+ef",
                           "threshold:0.7+ef", "*.bias=none;*=topk:0.1+ef"}) {
    CAPTURE(spec);
    std::vector<float> residual(layout().elements());
    for (std::uint64_t round = 0; round < 10; ++round) {
      std::vector<float> update = normal(layout().elements(), round);
      add_residual(update, residual);
      const auto payload = encode(*codec_of(spec), layout(), update, round, 256);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout()).value();
      keep_residual(update, reader, residual).value();
      const auto decoded = decode(payload, layout());
      for (std::size_t i = 0; i < update.size(); ++i) {
        REQUIRE((decoded[i] == 0 || residual[i] == 0));
        REQUIRE(decoded[i] + residual[i] == update[i]);
      }
    }
  }
}

TEST_CASE("a selected value beyond the quantizer's range is named with its index in the tensor") {
  const Layout one = flat_layout(2000);
  std::vector<float> x(2000, 0.5f);
  x[1234] = 70'000;
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  const auto refused = codec_of("topk:0.01+fp16")->encode(one, x, 1, sink);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code() == Errc::invalid_input);
  CHECK(refused.error().message().find("w[1234]") != std::string::npos);

  // Two of the four are selected and doubled, which is infinite.
  const Layout four = flat_layout(4);
  const std::vector<float> huge = {3e38f, -3e38f, 3e38f, -3e38f};
  const auto scaled = codec_of("randk:0.5,dense_below=0")->encode(four, huge, 1, sink);
  REQUIRE_FALSE(scaled.has_value());
  CHECK(scaled.error().code() == Errc::invalid_input);
  CHECK(scaled.error().message().find("w[") != std::string::npos);
}

// The sketch's cells would use the buffer into which the sparse block's values are decoded.
TEST_CASE("a sketch inside a sparse block is refused") {
  DecodeScratch scratch;
  std::vector<float> out(300);
  std::vector<std::byte> block(1 + 2 + 8);
  block[0] = static_cast<std::byte>(BlockFormat::randk);
  store(block, 1, std::uint16_t{8});
  constexpr std::uint16_t columns = 2000;
  std::vector<std::byte> sketch(1 + 1 + 2 + 8 + 4 + 1 + 3 * columns * sizeof(float));
  sketch[0] = std::byte{30};
  sketch[1] = std::byte{3};
  store(sketch, 2, columns);
  store(sketch, 12, 0.5f);
  CHECK(decode_block(sketch, out, scratch).has_value());
  block.insert(block.end(), sketch.begin(), sketch.end());
  for (const BlockFormat outer : {BlockFormat::randk, BlockFormat::sparse}) {
    if (outer == BlockFormat::sparse) {
      block.erase(block.begin() + 3, block.begin() + 11);
      std::vector<std::byte> indices;
      EncodeScratch encode;
      append_indices(std::vector<std::uint32_t>{1, 2, 3, 5, 8, 13, 21, 34}, out.size(), encode,
                     indices);
      block.insert(block.begin() + 3, indices.begin(), indices.end());
    }
    block[0] = static_cast<std::byte>(outer);
    const auto decoded = decode_block(block, out, scratch);
    REQUIRE_FALSE(decoded.has_value());
    CHECK(decoded.error().message().find("a sketch inside") != std::string::npos);
  }
}

TEST_CASE("a sparse block inside a sparse block is refused") {
  DecodeScratch scratch;
  std::vector<float> out(300);
  std::vector<std::byte> block = {std::byte{17}, std::byte{2}, std::byte{0}};
  block.resize(3 + 8);
  for (const int inner : {16, 17}) {
    auto nested = block;
    nested.insert(nested.end(), {static_cast<std::byte>(inner), std::byte{0}, std::byte{0}});
    const auto decoded = decode_block(nested, out, scratch);
    REQUIRE_FALSE(decoded.has_value());
    CHECK(decoded.error().code() == Errc::corrupt);
    CHECK(decoded.error().message().find("sparse block inside") != std::string::npos);
  }
  block.insert(block.end(),
               {std::byte{1}, std::byte{0}, std::byte{0x3c}, std::byte{0}, std::byte{0}});
  CHECK(decode_block(block, out, scratch).has_value());
  CHECK(nonzeros(out) == 1);
  store(block, 1, std::uint16_t{300});  // All elements: this is no selection.
  CHECK_FALSE(decode_block(block, out, scratch).has_value());
}
