// SPDX-License-Identifier: Apache-2.0
// The codecs' sizes and errors on a Gaussian vector, compared with theory. Means over a million
// samples are within 1% of the expectation.
#include "tests/codec/codec_support.hpp"
#include "tests/support/distortion.hpp"

#include <numbers>

using namespace fl;
using namespace fl::testing;

namespace {

constexpr std::size_t million = 1 << 20;

struct RateAndLoss {
  double bits;  // Per value.
  double nmse;
};

RateAndLoss measured(std::string_view spec) {
  static const std::vector<float> x = normal(million, 21, 0.01f);
  const Layout layout = flat_layout(million);
  const auto payload = encode(*codec_of(spec), layout, x);
  return {8.0 * static_cast<double>(payload.size()) / million, nmse(x, decode(payload, layout))};
}

}  // namespace

TEST_CASE("none takes 32 bits a value, the prefix and a byte for each block, and is exact") {
  const auto [bits, loss] = measured("none");
  const Layout layout = flat_layout(million);
  const BlockMap map(layout, block_elements_default);
  const std::vector<std::uint32_t> sizes(map.blocks());
  const std::size_t prefix = payload_prefix(map, sizes).size();
  CHECK(bits == 32 + 8.0 * static_cast<double>(prefix + map.blocks()) / million);
  CHECK(loss == 0);
}

TEST_CASE("sign's error of a Gaussian is 1 - 2 / pi") {
  CHECK(measured("sign").nmse == doctest::Approx(1 - 2 / std::numbers::pi).epsilon(0.01));
}

TEST_CASE("topk and randk have their theoretical errors of a Gaussian") {
  // P(|z| > cutoff) = 0.1 for a standard normal value z.
  constexpr double cutoff = 1.6448536;
  const double density = std::exp(-cutoff * cutoff / 2) / std::sqrt(2 * std::numbers::pi);
  CHECK(measured("topk:0.1").nmse == doctest::Approx(0.9 - 2 * cutoff * density).epsilon(0.01));
  // An element is selected with probability 1/10 and multiplied by 10: 0.1 * 9^2 + 0.9 = 9.
  CHECK(measured("randk:0.1").nmse == doctest::Approx(9).epsilon(0.02));
}

TEST_CASE("qsgd's variance is within its bound, min(d / S^2, sqrt(d) / S) for buckets of d") {
  // Alistarh 2017, lemma 3.1, for the Euclidean norm.
  for (const double levels : {1, 4, 16, 64}) {
    for (const double bucket : {16, 512, 4096}) {
      const auto spec = "qsgd:" + std::to_string(static_cast<int>(levels)) +
                        ",bucket=" + std::to_string(static_cast<int>(bucket)) + ",norm=l2";
      CAPTURE(spec);
      const double bound = std::min(bucket / (levels * levels), std::sqrt(bucket) / levels);
      const double loss = measured(spec).nmse;
      CHECK(loss <= bound);
      CHECK(loss > bound / 10);
    }
  }
}

TEST_CASE("no codec is better than the rate-distortion bound" * statistics) {
  CHECK(bits_above_bound(3, std::exp2(-2.0 * 3)) == doctest::Approx(0));
  CHECK(bits_above_bound(3, 2) == 3);
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const auto [bits, loss] = measured(spec);
    // The bound is infinite for real numbers without error, but fp32 numbers have an exact code.
    if (loss > 0) CHECK(bits_above_bound(bits, loss) > 0);
  }
}
