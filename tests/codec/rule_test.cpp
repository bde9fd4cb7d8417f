// SPDX-License-Identifier: Apache-2.0
// Rules: which tensors a pattern matches, which rule a tensor gets, and which tensors are sent as
// fp32 anyway.
#include "shared/codec/encode/rule.hpp"

#include "tests/codec/codec_support.hpp"

using namespace fl;
using namespace fl::codec;
using namespace fl::testing;

namespace {

bool fits(std::string pattern, std::string_view name) {
  return Rule{.pattern = std::move(pattern), .selector = {}, .quantizer = {}}.fits(name);
}

// The format ids of the payload's blocks. Each tensor is one block. The ids of entropy-coded floats
// (float_coder.hpp) are replaced by those of plain floats.
std::vector<int> formats(const std::string& spec, const Layout& layout) {
  const auto codec = codec_of(spec);
  const auto payload = encode(*codec, layout, normal(layout.elements(), 1));
  CHECK(payload.size() <= codec->payload_bytes_max(layout));
  const std::size_t table = payload_header_bytes;
  std::size_t at = table + layout.tensors().size() * 4;
  std::vector<int> ids;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const int id = std::to_integer<int>(payload[at]);
    constexpr int fp32_coded = 36;
    constexpr int fp16_coded = 37;
    ids.push_back(id == fp32_coded ? 0 : id == fp16_coded ? 1 : id);
    at += load<std::uint32_t>(payload, table + 4 * t);
  }
  return ids;
}

}  // namespace

TEST_CASE("patterns match tensor names as globs") {
  CHECK(fits("", "conv1.weight"));
  CHECK(fits("*", "conv1.weight"));
  CHECK(fits("conv*", "conv1.weight"));
  CHECK(fits("*.bias", "conv1.bias"));
  CHECK(fits("conv?.weight", "conv1.weight"));
  CHECK(fits("*a*b*", "xxaxxaxbx"));
  CHECK(fits("*ab", "abab"));
  CHECK(fits("fc", "fc"));
  CHECK(fits("fc**", "fc"));
  CHECK_FALSE(fits("fc?", "fc"));
  CHECK_FALSE(fits("fc", "fc1"));
  CHECK_FALSE(fits("*.bias", "conv1.bias2"));
  CHECK_FALSE(fits("conv*", "xconv1"));
  CHECK_FALSE(fits("*a*b*c", "abab"));
  // Matching takes time proportional to the product of the lengths, not exponential time.
  CHECK_FALSE(fits(std::string(250, '*') + "x", std::string(512, 'a')));
  std::string many;
  for (int i = 0; i < 100; ++i) many += "*a";
  CHECK_FALSE(fits(many + "b", std::string(512, 'a')));
}

TEST_CASE("each tensor gets the first rule that matches") {
  const Layout layout = layout_of(
      {{"conv1.weight", {2000}}, {"conv1.bias", {2000}}, {"fc.weight", {3000}}, {"fc.bias", {10}}});
  constexpr int fp32 = 0, fp16 = 1, qsgd = 2, qsgd_rans = 3, sparse = 16, randk = 17;
  CHECK(formats("*.bias=none;conv*=qsgd:8;*=topk:0.01+qsgd:4", layout) ==
        std::vector{qsgd_rans, fp32, sparse, fp32});
  CHECK(formats("conv*=qsgd:8;*.bias=none;*=randk:0.01", layout) ==
        std::vector{qsgd_rans, qsgd_rans, randk, fp32});
  CHECK(formats("*=fp16,dense_below=0", layout) == std::vector{fp16, fp16, fp16, fp16});
  CHECK(formats("qsgd:8", layout) == std::vector{qsgd_rans, qsgd_rans, qsgd_rans, qsgd});
}

TEST_CASE("small tensors go dense unless the spec says otherwise; statistics always go dense") {
  const Layout layout = layout_of({{"a", {1023}},
                                   {"b", {1024}},
                                   {"bn.running_mean", {4000}},
                                   {"bn.running_var", {4000}},
                                   {"bn.running_variance", {4000}}});
  constexpr int fp32 = 0, fp16 = 1, sparse = 16;
  CHECK(formats("topk:0.1", layout) == std::vector{fp32, sparse, fp32, fp32, sparse});
  CHECK(formats("topk:0.1,dense_below=1000+fp16", layout) ==
        std::vector{sparse, sparse, fp32, fp32, sparse});
  CHECK(formats("topk:0.1,dense_below=0", layout) ==
        std::vector{sparse, sparse, fp32, fp32, sparse});
  CHECK(formats("*=fp16", layout) == std::vector{fp32, fp16, fp32, fp32, fp16});
  CHECK(formats("fp16", layout) == std::vector{fp16, fp16, fp32, fp32, fp16});
  CHECK(formats("fp16,dense_below=1024", layout) == std::vector{fp32, fp16, fp32, fp32, fp16});
}

TEST_CASE("a codec lists each table row that it uses once") {
  using Names = std::vector<std::string>;
  CHECK(codec_of("qsgd:8,bucket=100+ef")->names() == Names{"qsgd"});
  CHECK(codec_of("topk:0.1+ef")->names() == Names{"topk", "lossless"});
  CHECK(codec_of("a=topk:0.1,scope=global+qsgd:4;b=qsgd:8;*=randk:0.1+fp16")->names() ==
        Names{"topk", "qsgd", "randk", "fp16"});
}
