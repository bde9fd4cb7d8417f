// SPDX-License-Identifier: Apache-2.0
// The random choices of codecs: they differ by seed, tensor and block, so errors of different
// blocks, clients and rounds are independent, and their mean is small.
#include "tests/codec/codec_support.hpp"
#include "tests/support/distortion.hpp"

#include <set>

using namespace fl;
using namespace fl::testing;

namespace {

constexpr std::uint32_t in_block = 1024;

/// Codecs that choose at random, and are right in the mean.
const std::vector<std::string>& unbiased_specs() {
  static const std::vector<std::string> specs{"qsgd:1",
                                              "qsgd:7,norm=l2",
                                              "kbit:2",
                                              "kbit:2,mode=affine",
                                              "terngrad,clip=0",
                                              "eden:1",
                                              "randk:0.3,dense_below=0",
                                              "ecuq:1",
                                              "ecuq:0.3",
                                              "randk:0.5,dense_below=0+qsgd:1"};
  return specs;
}

/// Two tensors of two blocks each. All four blocks have the same values.
Layout four_blocks() { return layout_of({{"a", {2 * in_block}}, {"b", {2 * in_block}}}); }

std::vector<float> same_values() {
  const std::vector<float> once = normal(in_block, 5);
  std::vector<float> x;
  for (int block = 0; block < 4; ++block) x.insert(x.end(), once.begin(), once.end());
  return x;
}

std::vector<float> decoded(const Codec& codec, CodeInputs inputs) {
  std::vector<std::byte> bytes;
  VectorSink sink(bytes);
  codec.encode(four_blocks(), same_values(), inputs, sink, in_block).value();
  return decode(bytes, four_blocks());
}

}  // namespace

TEST_CASE("blocks of equal values get different errors, by seed, tensor and place") {
  for (const std::string& spec : unbiased_specs()) {
    CAPTURE(spec);
    std::set<std::vector<float>> blocks;
    std::size_t count = 0;
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const auto values = decoded(*codec_of(spec), CodeInputs(seed));
      for (std::size_t begin = 0; begin < values.size(); begin += in_block, ++count)
        blocks.emplace(values.begin() + static_cast<std::ptrdiff_t>(begin),
                       values.begin() + static_cast<std::ptrdiff_t>(begin + in_block));
    }
    CHECK(blocks.size() == count);
  }
}

TEST_CASE("clients of a round, who share a seed, still choose by their own seeds") {
  for (const std::string& spec : unbiased_specs()) {
    CAPTURE(spec);
    const auto first = decoded(*codec_of(spec), CodeInputs(1, 9));
    CHECK(decoded(*codec_of(spec), CodeInputs(2, 9)) != first);
    CHECK(decoded(*codec_of(spec), CodeInputs(1, 9)) == first);
  }
}

TEST_CASE("the error of a mean over N seeds is an Nth of the error of one") {
  constexpr std::uint64_t seeds = 32;
  const std::vector<float> x = same_values();
  for (const std::string& spec : unbiased_specs()) {
    CAPTURE(spec);
    const auto codec = codec_of(spec);
    std::vector<double> sum(x.size());
    double one = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const auto values = decoded(*codec, CodeInputs(seed, 9));
      one += nmse(x, values) / seeds;
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += values[i];
    }
    std::vector<float> mean(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) mean[i] = static_cast<float>(sum[i] / seeds);
    CHECK(nmse(x, mean) * seeds == doctest::Approx(one).epsilon(0.15));
  }
}
