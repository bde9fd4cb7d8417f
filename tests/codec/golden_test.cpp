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
  CHECK(digest("qsgd:1") == "251bc6e49b32bed851ef2b558438929f");
  CHECK(digest("qsgd:8") == "141e7fc1c3b89074eea36cb1a5d5fc88");
  CHECK(digest("qsgd:127,norm=l2") == "d7f81ca2d370f281ae32802bda920ef4");
  CHECK(digest("kbit:4") == "67f53b6718fb8248fa94802141e1cf74");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "69f81972b4d2befddd994019652c295f");
  CHECK(digest("terngrad") == "9da10fbe76220c424b281e3d99a659e4");
  CHECK(digest("terngrad,clip=0") == "a1e9022af2f7cc8fb4109900b7fc9465");
  CHECK(digest("eden:1") == "ec46f89fac86524f686a6064fa843e97");
  CHECK(digest("eden:4") == "b79a92853e94b16f855164fde6e74c9c");
  CHECK(digest("powersgd:4") == "a03e7f73d55437c256603d57c08fe199");
  CHECK(digest("gradzip:4") == "d102ec93d5b37a03b610a6f2051a292a");
  CHECK(digest("sign") == "0419d6e994c63ca0bc3d769016fb24c5");
  CHECK(digest("ecuq:0.5") == "c69cffba084b8f4058e5996d4818936d");
  CHECK(digest("ecuq:1") == "19815a1809fd1f5ea52e03225153a487");
  CHECK(digest("ecuq:3") == "4ecb19a6318518332669c34bd6dde61b");
  CHECK(digest("ecuq:2") == "d3a9601be0e62e36f95f751cb7f72131");
  CHECK(digest("ecuq:7.5,mode=centroid") == "e0a5291cdc2a4c5bd94248ad19928704");
  // Indices as Golomb codes, as nibbles, as a key, and of no more than a few.
  CHECK(digest("topk:0.01+qsgd:8") == "288f3716d145053b1e7f1d8e1dfd9c61");
  CHECK(digest("topk:0.4+fp16") == "cbed1cfeb4ae0d1ff345deecc41684f8");
  CHECK(digest("randk:0.05+qsgd:8") == "5c077dd23f9ce05e413bbe572f5701ff");
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
