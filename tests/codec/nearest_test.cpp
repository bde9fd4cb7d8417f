// SPDX-License-Identifier: Apache-2.0
// Quantizers with error feedback: they round to the nearest level, not stochastically, so their
// error is smaller than the values.
#include "tests/codec/codec_support.hpp"

#include "shared/codec/encode/feedback.hpp"
#include "tests/support/distortion.hpp"

#include <numbers>

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

constexpr const char* nearest_specs[] = {"kbit:2+ef",    "kbit:3+ef",
                                         "kbit:5+ef",    "kbit:6+ef",
                                         "kbit:8+ef",    "kbit:2,scale=channel+ef",
                                         "qsgd:1+ef",    "qsgd:7,bucket=100+ef",
                                         "qsgd:1000+ef", "qsgd:32767+ef",
                                         "terngrad+ef",  "topk:0.2,dense_below=0+kbit:2+ef"};

/// The error of uniform rounding of a standard Gaussian to 2S + 1 levels with the best step. Max
/// 1960, table II, has 0.1902 for 3 levels.
double least_gaussian_nmse(int levels) {
  const auto density = [](double t) {
    return std::exp(-t * t / 2) / std::sqrt(2 * std::numbers::pi);
  };
  const auto above = [](double t) { return 0.5 * std::erfc(t / std::sqrt(2)); };
  double least = 1;
  for (double step = 0.01; step < 3; step += 0.001) {
    // 1 - 2 E[x q] + E[q^2], for both signs.
    double nmse = 1;
    for (int level = 1; level <= levels; ++level) {
      const double begin = (level - 0.5) * step;
      nmse += 2 * (step * step * (2 * level - 1) * above(begin) - 2 * step * density(begin));
    }
    least = std::min(least, nmse);
  }
  return least;
}

std::vector<std::vector<float>> hard_inputs(std::size_t n) {
  std::vector<std::vector<float>> all = {std::vector<float>(n),         std::vector<float>(n),
                                         std::vector<float>(n, 1e-42f), normal(n, 1, 1e-30f),
                                         normal(n, 2, 1e36f),           normal(n, 3)};
  all[1][n / 2] = -3.5f;
  for (float& v : all[5]) v = v * v * v;
  all.push_back(laplace(n, 4));
  all.push_back(all[5]);
  all.back()[0] = 1e4f;
  return all;
}

}  // namespace

TEST_CASE("with few levels the error of a Gaussian is within 3% of the best uniform quantizer's") {
  CHECK(least_gaussian_nmse(1) == doctest::Approx(0.1902).epsilon(1e-3));
  const Layout layout = flat_layout(1 << 18);
  const std::vector<float> x = normal(layout.elements(), 41, 0.01f);
  const auto loss = [&](const char* spec) {
    return nmse(x, decode(encode(*codec_of(spec), layout, x), layout));
  };
  for (const char* spec : {"kbit:2+ef", "terngrad+ef", "qsgd:1+ef", "qsgd:1,norm=l2+ef"}) {
    CHECK(loss(spec) == doctest::Approx(least_gaussian_nmse(1)).epsilon(0.03));
  }
  CHECK(loss("kbit:3+ef") == doctest::Approx(least_gaussian_nmse(3)).epsilon(0.03));
  CHECK(loss("kbit:4+ef") == doctest::Approx(least_gaussian_nmse(7)).epsilon(0.03));
  CHECK(loss("kbit:5+ef") == doctest::Approx(least_gaussian_nmse(15)).epsilon(0.03));
  // With stochastic rounding the error exceeds the values, and with many levels it is twice that of
  // rounding to nearest.
  CHECK(loss("kbit:2") > 2);
  CHECK(loss("qsgd:1") > 1.5);
  CHECK(loss("qsgd:127") == doctest::Approx(2 * loss("qsgd:127+ef")).epsilon(0.03));
}

TEST_CASE("no error is larger than its value, and the seed does not change the payload") {
  for (const char* spec : nearest_specs) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    for (const std::size_t n : {1, 2, 9, 31, 1025, 65537}) {
      CAPTURE(n);
      const Layout layout = flat_layout(static_cast<std::int64_t>(n));
      for (const std::vector<float>& x : hard_inputs(n)) {
        const auto payload = encode(*codec, layout, x, 1);
        CHECK(payload.size() <= codec->payload_bytes_max(layout));
        CHECK(encode(*codec, layout, x, 2) == payload);
        const auto back = decode(payload, layout);
        std::size_t larger = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const double error = std::fabs(static_cast<double>(back[i]) - x[i]);
          if (error > std::fabs(x[i]) * (1 + 1e-6)) ++larger;
        }
        CHECK(larger == 0);
      }
    }
  }
}

TEST_CASE("a spike and equal values are decoded exactly") {
  const Layout layout = flat_layout(10'000);
  std::vector<float> x(10'000);
  x[77] = 3;
  for (const char* spec : {"kbit:2+ef", "qsgd:1+ef", "terngrad+ef"}) {
    CHECK(decode(encode(*codec_of(spec), layout, x), layout) == x);
  }
  // Affine levels lie around a middle far from 0.
  const std::vector<float> equal(10'000, -0.25f);
  CHECK(decode(encode(*codec_of("kbit:2,mode=affine+ef"), layout, equal), layout) == equal);
}

TEST_CASE("every kernel row rounds to the same payload") {
  const Layout layout = layout_of({{"a", {70, 333}}, {"b", {33}}});
  const std::vector<float> x = laplace(layout.elements(), 8);
  for (const char* spec : nearest_specs) check_rows_agree(spec, layout, x, 256);
}

TEST_CASE("with error feedback every quantizer's residual stays about as small as an update" *
          statistics) {
  const Layout layout = layout_of({{"a", {700}}, {"b", {33}}});
  for (const std::string& spec : specs_to_test()) {
    const auto has = [&](const char* name) { return spec.find(name) != std::string::npos; };
    const bool selects = has("topk") || has("randk") || has("threshold") || has("countsketch");
    if (selects) continue;
    CAPTURE(spec);
    const auto codec = codec_of(spec + "+ef");
    std::vector<float> residual(layout.elements());
    for (std::uint64_t round = 0; round < 200; ++round) {
      std::vector<float> update = normal(layout.elements(), round);
      add_residual(update, residual);
      const auto payload = encode(*codec, layout, update, round);
      SpanSource source(payload);
      auto reader = PayloadReader::open(source, payload.size(), layout).value();
      keep_residual(update, reader, residual).value();
    }
    const double squares = kernels().scan(residual.data(), residual.size()).sum_squares;
    // At 0.1 bits ecuq sends a twelfth of a Gaussian's squared norm; at 0.3 bits eden sends a
    // fifth.
    CHECK(squares < (has("ecuq:0.1")   ? 30
                     : has("eden:0.3") ? 6
                                       : 3) *
                        static_cast<double>(layout.elements()));
  }
}
