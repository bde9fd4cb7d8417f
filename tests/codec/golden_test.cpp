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
      spec, [](char c) { return c == ':' || c == ',' || c == '='; }, '-');
  return fmt::format("{}/{}.hex", FL_GOLDEN_FOLDER, spec);
}

}  // namespace

TEST_CASE("the payload of a long fixed vector has the digest that it always had") {
  const Layout layout = layout_of({{"w", {200, 1000}}});
  const std::vector<float> x = normal(layout.elements(), 21);
  const auto digest = [&](const char* spec) {
    return Digest::of(encode(*codec_of(spec), layout, x, 0x1234567890abcdef)).hex();
  };
  CHECK(digest("qsgd:1") == "de48f571788abe711e60e218122a72d2");
  CHECK(digest("qsgd:8") == "6cb26423aefb0b2e6494de9f2581a0ba");
  CHECK(digest("qsgd:127,norm=l2") == "b51fcb03d0eee1de316306c992899b4f");
  CHECK(digest("kbit:4") == "28583e2df9a5b562250ce8f298e1d7cb");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "70a865bd7175bbb03b02d23175166906");
  CHECK(digest("terngrad") == "d98cea20a1b8c96e4848b40294fb785f");
  CHECK(digest("terngrad,clip=0") == "a391bed502edf5141fdd71d67ddce375");
  CHECK(digest("sign") == "86eb56f0e6d7c3e2126c967e47c69b67");
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
