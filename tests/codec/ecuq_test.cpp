// SPDX-License-Identifier: Apache-2.0
// Entropy-coded uniform quantization (ecuq): its rate is the requested one, and its error is the
// theoretical one.
#include "tests/codec/codec_support.hpp"
#include "tests/support/distortion.hpp"

#include <fmt/format.h>

using namespace fl;
using namespace fl::testing;

namespace {

struct Coded {
  double rate;  // Bits of the payload per value.
  double nmse;  // Squared error divided by squared norm.
};

Coded code(const std::string& spec, const Layout& layout, std::span<const float> x) {
  const auto payload = encode(*codec_of(spec), layout, x, 5);
  return {static_cast<double>(payload.size()) * 8 / static_cast<double>(x.size()),
          nmse(x, decode(payload, layout))};
}

/// H(Q | U) of a dithered standard Gaussian, in bits: the entropy of the level Q given the dither
/// U.
double entropy_given_dither(double step) {
  const auto below = [step](double place) { return 0.5 * std::erfc(-place * step / std::sqrt(2)); };
  constexpr int parts = 256;
  double bits = 0;
  for (int part = 0; part < parts; ++part) {
    const double u = (part + 0.5) / parts / 2;
    for (int level = -64; level <= 64; ++level) {
      const double share = below(level + 0.5 - u) - below(level - 0.5 - u);
      if (share > 0) bits -= share * std::log2(share) / parts;
    }
  }
  return bits;
}

/// The error of a dithered standard Gaussian at this rate. With dither it depends on the step
/// alone.
double dithered_nmse(double rate) {
  double low = 0.1;
  double high = 1000;
  while (high / low > 1.00001) {
    const double step = std::sqrt(low * high);
    (entropy_given_dither(step) > rate ? low : high) = step;
  }
  return low * low / 12;
}

// Bits that are not levels, per value: each block's size, head and initial states of rANS.
constexpr double head_bits = (4 + 1 + 4 + 8 + 1 + 2 + 128) * 8.0 / block_elements_default;

}  // namespace

TEST_CASE("the payload has the requested rate within 2%, whatever the distribution of the values" *
          statistics) {
  constexpr std::size_t n = 1 << 20;
  for (const char* mode : {"", ",mode=centroid"}) {
    for (const double rate : {0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.3, 4.0, 6.0, 8.0}) {
      const std::string spec = fmt::format("ecuq:{}{}", rate, mode);
      CAPTURE(spec);
      for (const auto& x : {normal(n, 31), laplace(n, 32)}) {
        const Coded coded = code(spec, flat_layout(n), x);
        // The step is computed from a sample, whose entropy is off by about 0.005 bits.
        CHECK(coded.rate < 1.01 * rate + 0.003);
        CHECK(coded.rate > 0.98 * rate - 0.005);
      }
    }
  }
}

TEST_CASE("the rate holds for all tensors together, with very different scales and sizes") {
  std::vector<TensorSpec> specs;
  for (int t = 0; t < 60; ++t) {
    specs.push_back({fmt::format("t{}", t), {t % 3 == 0 ? 60'000 : t % 3 == 1 ? 9'000 : 200}});
  }
  const Layout layout = layout_of(specs);
  std::vector<float> x = normal(layout.elements(), 33);
  for (std::size_t t = 0; t < specs.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const float scale = std::exp2(static_cast<float>(t % 7) - 3);
    for (std::size_t i = 0; i < tensor.elements; ++i) x[tensor.offset + i] *= scale;
  }
  for (const char* mode : {"", ",mode=centroid"}) {
    for (const double rate : {1.0, 2.0, 4.0}) {
      const std::string spec = fmt::format("ecuq:{}{}", rate, mode);
      CAPTURE(spec);
      const Coded coded = code(spec, layout, x);
      CHECK(coded.rate < 1.02 * rate);
      CHECK(coded.rate > 0.97 * rate);
      // A scale per tensor would make every tensor's error the same share of its norm, which is
      // more in total.
      const Coded alone = code(spec, flat_layout(1 << 20), normal(1 << 20, 34));
      CHECK(coded.nmse < 0.8 * alone.nmse);
    }
  }
}

TEST_CASE("without dither the error of Gaussian values is the theoretical one for the rate") {
  constexpr std::size_t n = 1 << 20;
  struct Case {
    const char* spec;
    double rate;
    double nmse;            // Exact, if the levels are coded at their entropy.
    double halvings_a_bit;  // How often an extra bit halves the error, near this rate.
  };
  for (const Case& c :
       {Case{"ecuq:1,mode=centroid", 1, 0.348, 1.97}, Case{"ecuq:2,mode=centroid", 2, 0.0889, 1.97},
        Case{"ecuq:4,mode=centroid", 4, 0.00556, 2}}) {
    CAPTURE(c.spec);
    const Coded coded = code(c.spec, flat_layout(n), normal(n, 35));
    const double spare = coded.rate - head_bits - c.rate;
    const double wanted = c.nmse * std::exp2(-spare * c.halvings_a_bit);
    CHECK(coded.nmse < 1.02 * wanted);
    CHECK(coded.nmse > 0.98 * wanted);
  }
}

TEST_CASE(
    "with dither the error of Gaussian values is the theoretical one, for levels coded given it") {
  // Published: Zamir and Feder's bound for the uniform scalar quantizer.
  CHECK(dithered_nmse(1) == doctest::Approx(0.551).epsilon(0.001));
  CHECK(dithered_nmse(2) == doctest::Approx(0.0976).epsilon(0.001));
  CHECK(dithered_nmse(4) == doctest::Approx(0.00559).epsilon(0.002));
  constexpr std::size_t n = 1 << 20;
  for (const char* spec : {"ecuq:0.5", "ecuq:1", "ecuq:1.5", "ecuq:2", "ecuq:2.5", "ecuq:4"}) {
    CAPTURE(spec);
    const Coded coded = code(spec, flat_layout(n), normal(n, 35));
    const double wanted = dithered_nmse(coded.rate - head_bits);
    CHECK(coded.nmse < 1.02 * wanted);
    CHECK(coded.nmse > 0.98 * wanted);
  }
}

TEST_CASE("far below one bit the rate is within 3% of the entropy, and the error is theoretical") {
  constexpr std::size_t n = 1 << 20;
  const std::vector<float> x = normal(n, 35);
  for (const double rate : {0.05, 0.1, 0.25}) {
    CAPTURE(rate);
    const auto payload = encode(*codec_of(fmt::format("ecuq:{}+ef", rate)), flat_layout(n), x, 5);
    const auto back = decode(payload, flat_layout(n));
    // The only levels are -1, 0 and 1.
    const auto zeros = static_cast<double>(std::ranges::count(back, 0.0f));
    const double share = 1 - zeros / n;
    const double entropy = share - share * std::log2(share) - (1 - share) * std::log2(1 - share);
    const double bits = static_cast<double>(payload.size()) * 8 / n;
    CHECK(bits < 1.03 * entropy);
    double low = 0;
    double high = 5;
    while (high - low > 1e-9) {
      const double middle = (low + high) / 2;
      (std::erfc(middle / std::sqrt(2)) > share ? low : high) = middle;
    }
    // The mean magnitude of the values beyond +-low is 2 phi(low) / share.
    const double density = std::exp(-low * low / 2) / std::sqrt(2 * std::acos(-1.0));
    CHECK(nmse(x, back) == doctest::Approx(1 - 4 * density * density / share).epsilon(0.005));
  }
}

TEST_CASE("at low rates dither in eight classes is not much worse than the exact dither") {
  constexpr std::size_t n = 1 << 20;
  for (const double rate : {0.1, 0.25}) {
    CAPTURE(rate);
    const Coded coded = code(fmt::format("ecuq:{}", rate), flat_layout(n), normal(n, 35));
    const double wanted = dithered_nmse(coded.rate);
    // The coder knows only eight classes of the dither's size, not its exact value.
    CHECK(coded.nmse < (rate < 0.25 ? 1.6 : 1.25) * wanted);
    CHECK(coded.nmse > wanted);
  }
}

TEST_CASE("small tensors have the requested rate, too") {
  for (const std::int64_t n : {1000, 2000, 3072, 3073, 10'000}) {
    std::vector<TensorSpec> tensors;
    for (int t = 0; t < 8; ++t) tensors.push_back({fmt::format("t{}", t), {n}});
    const Layout layout = Layout::make(tensors).value();
    const std::vector<float> x = normal(layout.elements(), 50);
    for (const double rate : {1.5, 2.0, 4.0}) {
      CAPTURE(n);
      CAPTURE(rate);
      const auto payload = encode(*codec_of(fmt::format("ecuq:{}", rate)), layout, x);
      const double bits = static_cast<double>(payload.size() - payload_header_bytes) * 8 /
                          static_cast<double>(layout.elements());
      CHECK(bits == doctest::Approx(rate).epsilon(0.03));
    }
  }
}

TEST_CASE("levels in classes decode to themselves, also with empty and constant classes") {
  constexpr std::size_t n = 40'000;
  LevelScratch scratch;
  for (const std::size_t count : {1u, 2u, 3u, 8u}) {
    CAPTURE(count);
    std::vector<std::int16_t> levels(n);
    std::vector<std::uint8_t> of(n);
    const std::vector<float> x = normal(n, 38);
    for (std::size_t i = 0; i < n; ++i) {
      // Class 1 has no levels, and class 2 has zeros only.
      of[i] = static_cast<std::uint8_t>(i * i % 7919 % count == 1 ? 0 : i * i % 7919 % count);
      levels[i] = of[i] == 2 ? std::int16_t{0} : static_cast<std::int16_t>(std::lround(x[i]));
    }
    const LevelClasses classes = {.of = of, .count = count};
    std::vector<std::byte> room(n);
    const std::size_t bytes = write_rans_levels(levels, 9, scratch, room, classes);
    REQUIRE(bytes > 0);
    std::vector<std::int16_t> back(n);
    CHECK(read_rans_levels(Bytes(room).first(bytes), 9, scratch, back, classes));
    CHECK(back == levels);
    CHECK_FALSE(read_rans_levels(Bytes(room).first(bytes - 1), 9, scratch, back, classes));
    CHECK_FALSE(read_rans_levels(Bytes(room).first(bytes + 1), 9, scratch, back, classes));
  }
}

TEST_CASE("a block that claims classes without dither or as bit fields is refused") {
  for (const std::string spec : {"ecuq:1,mode=centroid", "ecuq:8"}) {  // No dither, bit fields.
    CAPTURE(spec);
    const Layout layout = flat_layout(40);
    auto payload = encode(*codec_of(spec), layout, normal(40, 39));
    CHECK(decode(payload, layout).size() == 40);
    const std::size_t block = payload_header_bytes + sizeof(std::uint32_t);
    const std::size_t extra = spec == "ecuq:8" ? 8 : 4;
    payload[block + 1 + sizeof(float) + extra + 1 + 1] |= std::byte{0x40};
    SpanSource source(payload);
    auto reader = PayloadReader::open(source, payload.size(), layout).value();
    std::vector<float> values(40);
    const auto decoded = reader.decode(0, values);
    REQUIRE_FALSE(decoded.has_value());
    CHECK(decoded.error().message().find("can't have classes") != std::string::npos);
  }
}

TEST_CASE("zeros cost almost nothing, and constants, spikes and outliers are coded well") {
  constexpr std::size_t n = 200'000;
  const Layout layout = flat_layout(n);
  const std::vector<float> zeros(n);
  for (const char* spec : {"ecuq:2", "ecuq:2,mode=centroid"}) {
    CAPTURE(spec);
    CHECK(encode(*codec_of(spec), layout, zeros).size() < 120);
    CHECK(decode(encode(*codec_of(spec), layout, zeros), layout) == zeros);
    const std::vector<float> equal(n, 0.1f);
    CHECK(code(spec, layout, equal).rate < 2.04);
    CHECK(code(spec, layout, equal).nmse < 0.05);
    // The spike is not in the sample, which is then all zeros.
    std::vector<float> spike(n);
    spike[n / 2 + 1] = -3.0f;
    CHECK(code(spec, layout, spike).rate < 2.04);
    // Outliers are sent exactly.
    std::vector<float> outliers = normal(n, 36);
    for (std::size_t i = 0; i < n; i += 20'000) outliers[i] = 1e9f;
    const auto back = decode(encode(*codec_of(spec), layout, outliers), layout);
    for (std::size_t i = 0; i < n; i += 20'000) CHECK(back[i] == 1e9f);
    CHECK(code(spec, layout, outliers).rate < 2.04);
  }
}

TEST_CASE("if one block has much larger values, only its step grows, and its size is bounded") {
  const Layout layout = layout_of({{"a", {1 << 20}}, {"b", {300}}});
  std::vector<float> x = normal(layout.elements(), 37);
  for (std::size_t i = 1 << 20; i < x.size(); ++i) x[i] *= 1e6f;
  const auto codec = codec_of("ecuq:2");
  const auto payload = encode(*codec, layout, x);
  CHECK(payload.size() <= codec->payload_bytes_max(layout));
  const auto back = decode(payload, layout);
  for (std::size_t i = 1 << 20; i < x.size(); ++i) {
    CHECK(std::fabs(back[i] - x[i]) < 4e6f / 127);
  }
}
