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
  CHECK(digest("qsgd:1") == "ce489e11c7d1da4df10effe5dd7a7ca8");
  CHECK(digest("qsgd:8") == "6ae17202827386a27d91aa0ad85b975a");
  CHECK(digest("qsgd:127,norm=l2") == "6fecce233c858687931918af73f13dde");
  CHECK(digest("kbit:4") == "e95f7b6bcbf5377c6460939124d10113");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "976d49680ed3fcf5f2799764070a4d6a");
  CHECK(digest("terngrad") == "eab927f7d41470efa81aee3e736d3721");
  CHECK(digest("terngrad,clip=0") == "5848b17391875e7767c5f6502bea63e0");
  CHECK(digest("eden:1") == "2b0c99bc101a91fe3d1b3a5886521032");
  CHECK(digest("eden:4") == "a3356f5ee6b77d3acc278a40fc2c07eb");
  CHECK(digest("powersgd:4") == "aca44322b53ae9fe3b9a5fdd72cae821");
  CHECK(digest("gradzip:4") == "d9def7fc1c8dbc75a2a60b750a13e993");
  CHECK(digest("countsketch:5x2000") == "10690a6771155a612d5be7153362d216");
  CHECK(digest("kbit:2+ef") == "a7dcfa10ce360eaa57973d099f513188");
  CHECK(digest("kbit:6,scale=channel,mode=affine+ef") == "cc745a93b228c4368c18119cd29085b3");
  CHECK(digest("qsgd:7+ef") == "baf7afecf986ea1d40861bb47c240e42");
  CHECK(digest("terngrad+ef") == "86e8586feb5aebddd20ff848fe33d8fb");
  CHECK(digest("sign") == "b8ddcd1607c10950753bf6c759fc96a0");
  CHECK(digest("ecuq:0.5") == "63e58c89dcba9f48751a00990a343f18");
  CHECK(digest("ecuq:1") == "6113ca1cbaa6f6a84733e9e360608c1d");
  CHECK(digest("ecuq:3") == "097f5d2709aea6205693acc498de08ab");
  CHECK(digest("ecuq:2") == "c28ce929cc3988d29b6a71d573c2f1e6");
  CHECK(digest("ecuq:7.5,mode=centroid") == "9e879436509307ec26518cacebe47a59");
  // Indices as Golomb codes, as nibbles, as a key, and of no more than a few.
  CHECK(digest("topk:0.01+qsgd:8") == "569617701876bcacd143f7d3866f0776");
  CHECK(digest("topk:0.4+fp16") == "69a4748def2f3b516f84f550a40625ef");
  CHECK(digest("randk:0.05+qsgd:8") == "2100cd29c090e2a3aeb440d43ff3ff2e");
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
