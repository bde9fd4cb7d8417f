// The bytes of every codec for one fixed vector, kept in golden/*.hex: a change of the format or of
// the arithmetic shows as a diff. FL_GOLDEN_REWRITE=1 writes the files anew.
#include "codec_support.hpp"

#include "shared/base/digest.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

using namespace fl;
using namespace fl::testing;

namespace {

// 32 bytes to a line.
std::string hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += fmt::format("{:02x}{}", std::to_integer<int>(bytes[i]),
                        i % 32 == 31 || i + 1 == bytes.size() ? "\n" : "");
  }
  return text;
}

std::string file_name(std::string spec) {
  std::ranges::replace_if(
      spec, [](char c) { return std::string_view(":,=+;*").find(c) != std::string_view::npos; },
      '-');
  return fmt::format("{}/{}.hex", FL_GOLDEN_FOLDER, spec);
}

}  // namespace

TEST_CASE("the payload of a long fixed vector has the digest that it always had") {
  const Layout layout = layout_of({{"w", {200, 1000}}});
  const std::vector<float> x = normal(layout.elements(), 21);
  const auto digest = [&](const char* spec) {
    return Digest::of(encode(*codec_of(spec), layout, x, 0x1234567890abcdef)).hex();
  };
  CHECK(digest("qsgd:1") == "de17272da7eec40173df406533944a6b");
  CHECK(digest("qsgd:8") == "b91db0388fb63ccb2d23c851eb3b1971");
  CHECK(digest("qsgd:127,norm=l2") == "ec6f64749a35127bf6374940346827f7");
  CHECK(digest("kbit:4") == "a7ce03ca3460f3ddb9c0fe58bb38ffdc");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "ec7a9dc3f0355e906bca8d3b49985c15");
  CHECK(digest("terngrad") == "67bf697e623189e070083983aa01fcaa");
  CHECK(digest("terngrad,clip=0") == "814c5ce5aee1d259eb82acad670fbee3");
  CHECK(digest("eden:1") == "2b0c99bc101a91fe3d1b3a5886521032");
  CHECK(digest("eden:4") == "7bc106ecab24bdc2e09802d0d49fac46");
  CHECK(digest("powersgd:4") == "58ffc94a653055276c1e5cb2319d2ebe");
  CHECK(digest("gradzip:4") == "72feb0a519ab050d1810183cd3da7b86");
  CHECK(digest("countsketch:5x2000") == "79c17d903034a3b168769980e4119b6b");
  CHECK(digest("kbit:2+ef") == "8a88f7e4605eb3519bb15dbe62ab7b01");
  CHECK(digest("kbit:6,scale=channel,mode=affine+ef") == "2437ee1378c90dbf8bfbdf9f1e8e2469");
  CHECK(digest("qsgd:7+ef") == "351852d954c2ba0111d08c2be66b0b9b");
  CHECK(digest("terngrad+ef") == "e537f51cef8bbcfd048f0fbe884b5961");
  CHECK(digest("sign") == "b8ddcd1607c10950753bf6c759fc96a0");
  CHECK(digest("ecuq:0.5") == "2a971ff1658516ee6aa2082ef0166d85");
  CHECK(digest("ecuq:1") == "4cdb932ae5dda6177d3a8d0c7b479870");
  CHECK(digest("ecuq:3") == "f47194834e345441137813faa34b2cd7");
  CHECK(digest("ecuq:2") == "fe3909b7c7799c1832cf813ba02d368d");
  CHECK(digest("ecuq:7.5,mode=centroid") == "551f4fb7146b36443e9ee1f566388c05");
  // Indices as Golomb codes, as nibbles, as a key, and of no more than a few.
  CHECK(digest("topk:0.01+qsgd:8") == "569617701876bcacd143f7d3866f0776");
  CHECK(digest("topk:0.4+fp16") == "f91b9f3e5acd5b71fa7597e3961b887b");
  CHECK(digest("randk:0.05+qsgd:8") == "48ba38e0d54319181fb3d1fa475d01ef");
  CHECK(digest("threshold:4.5") == "0eeedcfdbb0503dc30bbb9fbec7a2a7b");
}

TEST_CASE("the payload of a fixed vector has the bytes that it always had") {
  const Layout layout = layout_of({{"layer.weight", {10, 30}}, {"layer.bias", {10}}, {"gain", {}}});
  std::vector<float> x(layout.elements());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = (static_cast<float>(i * 37 % 101) - 50.0f) * 0.015625f;
  }
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const std::string text = hex(encode(*codec_of(spec), layout, x, 0x1234567890abcdef, 256));
    if (std::getenv("FL_GOLDEN_REWRITE") != nullptr) std::ofstream(file_name(spec)) << text;
    std::ifstream file(file_name(spec));
    REQUIRE(file.is_open());
    std::stringstream golden;
    golden << file.rdbuf();
    CHECK(text == golden.str());
  }
}
