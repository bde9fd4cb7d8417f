// SPDX-License-Identifier: Apache-2.0
// The codec eden: the properties that its paper claims, and blocks whose size is no power of two.
#include "tests/codec/codec_support.hpp"
#include "tests/support/distortion.hpp"

#include <limits>

using namespace fl;
using namespace fl::testing;

namespace {

double squares(std::span<const float> x) { return kernels().scan(x.data(), x.size()).sum_squares; }

double loss_by(const std::string& spec, const std::vector<float>& x, std::uint64_t seed = 1) {
  const Layout layout = flat_layout(static_cast<std::int64_t>(x.size()));
  return nmse(x, decode(encode(*codec_of(spec), layout, x, seed), layout));
}

// Zeros with a few values of very different sizes in each block.
std::vector<float> spiky(std::size_t n, std::uint64_t seed) {
  const std::vector<float> v = normal(n, seed);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; i += 16384) x[i + i / 16384] = 1000 * v[i];
  for (std::size_t i = 5; i < n; i += 1000) x[i] = v[i];
  return x;
}

// Checks that the mean of the decoded values over the seeds is x within 5 sigma.
void check_unbiased(const std::string& spec, const std::vector<float>& x, std::uint64_t seeds) {
  CAPTURE(spec);
  CAPTURE(x.size());
  const Layout layout = flat_layout(static_cast<std::int64_t>(x.size()));
  const auto codec = codec_of(spec);
  std::vector<double> sum(x.size());
  std::vector<double> square(x.size());
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto back = decode(encode(*codec, layout, x, seed), layout);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = static_cast<double>(back[i]) - x[i];
      sum[i] += error;
      square[i] += error * error;
    }
  }
  const auto count = static_cast<double>(seeds);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(std::fabs(sum[i] / count) <= 5 * std::sqrt(square[i]) / count + 1e-6);
  }
}

}  // namespace

TEST_CASE("eden's error is the published one, whatever the distribution of the values") {
  constexpr std::size_t n = 1 << 20;
  struct Case {
    const char* spec;
    double published;  // For 3 bits: 1 / (1 - D) - 1 with D = 0.03454 from Max 1960.
  };
  // For fractional bits: 1 / (1 - D) - 1 with the average D of the values; a value that is not sent
  // has D = 1.
  for (const Case& c :
       {Case{"eden:1", 0.571}, Case{"eden:2", 0.133}, Case{"eden:3", 0.03578},
        Case{"eden:4", 0.0096}, Case{"eden:0.5", 2.1416}, Case{"eden:0.1", 14.708},
        Case{"eden:1.5", 0.3165}, Case{"eden:2.25", 0.1067}, Case{"eden:3.9", 0.0119}}) {
    CAPTURE(c.spec);
    for (const auto& x : {normal(n, 31), laplace(n, 32), spiky(n, 33)}) {
      const double error = loss_by(c.spec, x);
      CHECK(error == doctest::Approx(c.published).epsilon(0.02));
    }
  }
}

TEST_CASE("eden is unbiased: the mean over many seeds is x within 5 sigma" * statistics) {
  for (const char* spec : {"eden:1", "eden:2", "eden:3", "eden:4", "eden:0.25", "eden:1.5"}) {
    check_unbiased(spec, normal(1024, 41), 1024);
    check_unbiased(spec, laplace(700, 42), 1024);
    check_unbiased(spec, normal(20, 45), 1024);
    // Half of the energy is in one value: with one round of random signs a part of the other values
    // would be lost.
    std::vector<float> x = normal(1024, 43);
    x[100] = 32;
    check_unbiased(spec, x, 1024);
  }
  check_unbiased("randk:0.5,dense_below=0+eden:1", normal(1024, 44), 1024);
}

TEST_CASE("below one bit a decoded sparse vector is not too large with any seed") {
  // With two ones among sixteen values, all values that are sent may be 0 after the rotation.
  for (const char* spec : {"eden:0.05", "eden:0.25", "eden:0.5", "eden:0.9"}) {
    CAPTURE(spec);
    for (const std::size_t n : {16u, 64u, 128u, 1000u}) {
      std::vector<float> x(n);
      x[0] = x[3] = 1;
      double sum = 0;
      constexpr std::uint64_t seeds = 500;
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        const auto back =
            decode(encode(*codec_of(spec), flat_layout(static_cast<std::int64_t>(n)), x, seed),
                   flat_layout(static_cast<std::int64_t>(n)));
        CHECK(squares(back) < 1000);
        sum += (static_cast<double>(back[0]) + static_cast<double>(back[3])) / 2;
      }
      CHECK(sum / seeds == doctest::Approx(1).epsilon(0.5));
    }
  }
  const auto values = normal(3000, 5);
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const auto back = decode(
        encode(*codec_of("topk:0.002,dense_below=0+eden:0.5"), flat_layout(3000), values, seed),
        flat_layout(3000));
    CHECK(kernels().scan(back.data(), back.size()).max_abs < 100);
  }
}

TEST_CASE("with error feedback eden has its theoretical error, which is always below the norm") {
  constexpr std::size_t n = 1 << 20;
  struct Case {
    const char* spec;
    double lost;  // 1 - s (1 - D), where s is the share of the values that is sent.
  };
  for (const Case& c : {Case{"eden:1+ef", 0.3634}, Case{"eden:2+ef", 0.1175},
                        Case{"eden:0.25+ef", 0.8408}, Case{"eden:1.5+ef", 0.2404}}) {
    CAPTURE(c.spec);
    for (const auto& x : {normal(n, 31), laplace(n, 32), spiky(n, 33)})
      CHECK(loss_by(c.spec, x) == doctest::Approx(c.lost).epsilon(0.02));
    for (const float size : {1e-41f, 0x1p108f}) CHECK(loss_by(c.spec, normal(100, 9, size)) < 1);
  }
}

TEST_CASE("eden: the decoded vector's projection on x is x, for blocks of every size") {
  for (const std::size_t n : {1u, 2u, 3u, 9u, 17u, 100u, 1000u, 1023u, 1025u, 33000u, 65535u}) {
    const Layout layout = flat_layout(static_cast<std::int64_t>(n));
    for (const char* spec : {"eden:1", "eden:2", "eden:3", "eden:4", "eden:2.3"}) {
      CAPTURE(n);
      CAPTURE(spec);
      for (const float size : {1.0f, 1e-41f, 0x1p108f}) {
        const std::vector<float> x = normal(n, n, size);
        const auto back = decode(encode(*codec_of(spec), layout, x), layout);
        double product = 0;
        for (std::size_t i = 0; i < n; ++i) product += static_cast<double>(x[i]) * back[i];
        // Tiny values are rounded to denormal numbers.
        CHECK(product / squares(x) == doctest::Approx(1).epsilon(size < 1 ? 1e-2 : 1e-4));
        if (n <= 3) CHECK(back == x);
      }
    }
  }
}

TEST_CASE("eden splits a block into pieces and pads them so that the code is short") {
  const auto bytes = [](const char* spec, std::size_t n) {
    const Layout layout = flat_layout(static_cast<std::int64_t>(n));
    return encode(*codec_of(spec), layout, normal(n, 51)).size() - payload_header_bytes -
           sizeof(std::uint32_t);
  };
  constexpr std::size_t head = 1 + 1 + 8;  // Format id, bits, key.
  CHECK(bytes("eden:1", 3) == 1 + 12);
  CHECK(bytes("eden:1", 16) == head + 4 + 2);
  CHECK(bytes("eden:1", 800) == head + 12 + 64 + 32 + 4);
  CHECK(bytes("eden:1", 1000) == head + 4 + 128);
  CHECK(bytes("eden:1", 1023) == head + 4 + 128);
  CHECK(bytes("eden:1", 1025) == head + 8 + 128 + 2);
  CHECK(bytes("eden:1", 33000) == head + 8 + 4096 + 32);
  CHECK(bytes("eden:1", 65535) == head + 4 + 8192);
  // 1,000 values are padded to 1,024, of which 512 have an extra bit.
  CHECK(bytes("eden:1.5", 1000) <= head + 1 + 4 + 128 + 64);
  CHECK(bytes("eden:0.5", 1000) == head + 1 + 4 + 64);
  CHECK(bytes("eden:0.05", 65536) == head + 1 + 4 + 410);
  for (const char* spec : {"eden:1", "eden:4", "eden:0.05", "eden:0.7", "eden:1.001", "eden:3.5"}) {
    std::uint64_t longest = 0;
    for (std::int64_t n = 1; n < 3000; ++n) {
      const std::uint64_t most = codec_of(spec)->payload_bytes_max(flat_layout(n));
      CHECK(most >= longest);  // Sparse blocks rely on this.
      longest = most;
    }
  }
}

TEST_CASE("eden's coded levels are near the entropy of the centroids, and never longer") {
  constexpr std::size_t n = 1 << 20;
  const Layout layout = flat_layout(n);
  const std::vector<float> x = laplace(n, 52);
  struct Case {
    const char* spec;
    double entropy;  // The entropy of a normal value's centroid, in bits.
  };
  for (const Case& c :
       {Case{"eden:1", 1.0}, Case{"eden:2", 1.911}, Case{"eden:3", 2.825}, Case{"eden:4", 3.765},
        Case{"eden:0.5", 0.5}, Case{"eden:1.5", 1.4555}, Case{"eden:2.5", 2.368}}) {
    const double bits = static_cast<double>(encode(*codec_of(c.spec), layout, x).size()) * 8 / n;
    CAPTURE(c.spec);
    CHECK(bits > 0.998 * c.entropy);
    CHECK(bits < 1.012 * c.entropy);
  }
}

TEST_CASE("eden: a block of zeros takes two bytes, and a piece of zeros decodes to zeros") {
  for (const char* spec : {"eden:1", "eden:4"}) {
    const Layout layout = flat_layout(1025);
    std::vector<float> x(1025, -0.0f);
    const auto zeros = encode(*codec_of(spec), layout, x);
    CHECK(zeros.size() == payload_header_bytes + sizeof(std::uint32_t) + 2);
    CHECK(decode(zeros, layout) == x);
    x[1024] = 3;
    const auto back = decode(encode(*codec_of(spec), layout, x), layout);
    CHECK(std::equal(x.begin(), x.end() - 1, back.begin()));
    CHECK(back[1024] != 0);
  }
}

TEST_CASE("eden refuses values that could decode to infinity, and accepts smaller ones") {
  const Layout layout = flat_layout(1000);
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  for (const char* spec : {"eden:1", "eden:4"}) {
    const auto refused = codec_of(spec)->encode(layout, normal(1000, 53, 0x1p124f), 1, sink);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code() == Errc::invalid_input);
    CHECK(refused.error().message().find("w[0]") != std::string::npos);
    CHECK(codec_of(spec)->encode(layout, normal(1000, 53, 0x1p119f), 1, sink).has_value());
  }
}

TEST_CASE("eden's random signs are independent of the indices that randk draws") {
  const Layout layout = flat_layout(1000);
  const auto key = [&](const char* spec, std::size_t at) {
    const auto payload = encode(*codec_of(spec), layout, normal(1000, 54), 7);
    return load<std::uint64_t>(payload, payload_header_bytes + sizeof(std::uint32_t) + at);
  };
  const char* const spec = "randk:0.5,dense_below=0+eden:1";
  constexpr std::size_t inner = 1 + 2 + 8;  // After format id, k and randk's key.
  CHECK(key(spec, 1 + 2) != key(spec, inner + 2));
  CHECK(key(spec, inner + 2) == key("eden:1", 2));
}

TEST_CASE("eden refuses settings, scales and levels that no encoder writes") {
  constexpr std::size_t n = 16;
  std::vector<float> out(n);
  DecodeScratch scratch;
  const auto is_taken = [&](const std::vector<std::byte>& block) {
    return decode_block(block, out, scratch).has_value();
  };
  constexpr std::size_t scale_at = 1 + 1 + 8;
  std::vector<std::byte> head(scale_at + sizeof(float));
  head[0] = std::byte{27};
  head[1] = std::byte{2};
  store(head, scale_at, 1.0f);
  const auto with_level = [&](std::int16_t level) {
    std::vector<std::int16_t> levels(n, level);
    levels[3] = -2;
    std::vector<std::byte> block = head;
    block.resize(head.size() + 1000);
    LevelScratch coded;
    const std::size_t bytes =
        write_rans_levels(levels, 2, coded, MutableBytes(block).subspan(head.size()));
    REQUIRE(bytes > 0);
    block.resize(head.size() + bytes);
    return block;
  };
  CHECK(is_taken(with_level(1)));
  CHECK_FALSE(is_taken(with_level(2)));  // The last symbol of rANS's alphabet is no level.
  for (const int bits : {0, 5, 255}) {
    auto block = with_level(1);
    block[1] = static_cast<std::byte>(bits);
    CHECK_FALSE(is_taken(block));
  }
  for (const float scale : {-1.0f, -0.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    auto block = with_level(1);
    store(block, scale_at, scale);
    CHECK_FALSE(is_taken(block));
  }
}
