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
  CHECK(digest("qsgd:1") == "e2a904387ec8dc8bda1287346e3d079c");
  CHECK(digest("qsgd:8") == "5f4f5ec50b85f55fd7a666a65f05ed1c");
  CHECK(digest("qsgd:127,norm=l2") == "999af81410a295bc95300685a7f94bb6");
  CHECK(digest("kbit:4") == "bee26b2ce7efbc3afaa25215bfba5e23");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "eacfbc1f92a8a84998f6625f19bde910");
  CHECK(digest("terngrad") == "9de9665390b33568cba311a7321a1d02");
  CHECK(digest("terngrad,clip=0") == "459340c3b63808c12ad3f7f238f9708d");
  CHECK(digest("eden:1") == "ec46f89fac86524f686a6064fa843e97");
  CHECK(digest("eden:4") == "b79a92853e94b16f855164fde6e74c9c");
  CHECK(digest("powersgd:4") == "a03e7f73d55437c256603d57c08fe199");
  CHECK(digest("gradzip:4") == "d102ec93d5b37a03b610a6f2051a292a");
  CHECK(digest("countsketch:5x2000") == "222cd2d6a2c022a1a4b41f3feab87a43");
  CHECK(digest("kbit:2+ef") == "fdf1190664ef879ba77402188b6c5df7");
  CHECK(digest("kbit:6,scale=channel,mode=affine+ef") == "23a961efb9bac2b25502e531060bba06");
  CHECK(digest("qsgd:7+ef") == "ab8e611f4f369e97a067707bc9bd8c61");
  CHECK(digest("terngrad+ef") == "03d4e5d857072fbd099b32f3849b4500");
  CHECK(digest("sign") == "0419d6e994c63ca0bc3d769016fb24c5");
  CHECK(digest("ecuq:0.5") == "8c66fae5fa983e13e3e23f496757a83b");
  CHECK(digest("ecuq:1") == "52c635ccd0cd297d2357f4d6bb94c48c");
  CHECK(digest("ecuq:3") == "7370021acc50aed4630b19b0c861a9c9");
  CHECK(digest("ecuq:2") == "47c1075fa75f6e83c133325cd976d06a");
  CHECK(digest("ecuq:7.5,mode=centroid") == "404408cdaa2959d5acc9d83db9045395");
  // Indices as Golomb codes, as nibbles, as a key, and of no more than a few.
  CHECK(digest("topk:0.01+qsgd:8") == "04de1b422b20997cc90e18826df1b689");
  CHECK(digest("topk:0.4+fp16") == "cbed1cfeb4ae0d1ff345deecc41684f8");
  CHECK(digest("randk:0.05+qsgd:8") == "bfbb1a2086bf6b22b8393a7cdd1953d2");
  CHECK(digest("threshold:4.5") == "de30046f1d257b32db8135a609226151");
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
