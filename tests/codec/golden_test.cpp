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
  CHECK(digest("qsgd:1") == "7fe0d6a4e6019e54d67dcfafd2ddef0a");
  CHECK(digest("qsgd:8") == "d7859e35a685ad2e502a2be57e30197d");
  CHECK(digest("qsgd:127,norm=l2") == "b0b1497d9b18935f2c724edd74a7a8dd");
  CHECK(digest("kbit:4") == "4808b71d44d0df54bbe3675817e43d98");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "c5a426e49c37ce6b54f50fb201a9a9f7");
  CHECK(digest("terngrad") == "3af8f84de6c95c16f68ab593bcabbc2a");
  CHECK(digest("terngrad,clip=0") == "e476c7a5cdba51716837aadf98872786");
  CHECK(digest("eden:1") == "ee15e81e55bc94de8d2dbbd0f8547faa");
  CHECK(digest("eden:4") == "ea4b1a04f0cf56a309313de12a826c87");
  CHECK(digest("sign") == "86eb56f0e6d7c3e2126c967e47c69b67");
  CHECK(digest("ecuq:2") == "15785259d081ea9e0b1a44ac8bab9b63");
  CHECK(digest("ecuq:7.5,mode=centroid") == "0f92567128fac39057670934915217d7");
  // Indices as Golomb codes, as nibbles, as a key, and of no more than a few.
  CHECK(digest("topk:0.01+qsgd:8") == "be8008e3b2e1fb88f91bf93f2d257e27");
  CHECK(digest("topk:0.4+fp16") == "04fef7dadfd9fe338abd72d51483f554");
  CHECK(digest("randk:0.05+qsgd:8") == "42269b84d5f6de3210f0dfe72c2a2c6f");
  CHECK(digest("threshold:4.5") == "fb0488efa9ab63864b8fe10c4a3e1788");
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
