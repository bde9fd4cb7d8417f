// SPDX-License-Identifier: Apache-2.0
// The bytes of every codec for one fixed vector are kept in golden/*.hex, so a change of the format
// or the arithmetic shows. FL_GOLDEN_REWRITE=1 writes the files that are missing.
#include "tests/codec/codec_support.hpp"

#include "shared/base/io/digest.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
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

TEST_CASE("the payload of a long fixed vector has the recorded digest") {
  const Layout layout = layout_of({{"w", {200, 1000}}});
  const std::vector<float> x = normal(layout.elements(), 21);
  const auto digest = [&](const char* spec) {
    return Digest::of(encode(*codec_of(spec), layout, x, 0x1234567890abcdef)).hex();
  };
  CHECK(digest("qsgd:1") == "42a594fbc239aa84ce0ce00fdf470d26");
  CHECK(digest("qsgd:8") == "58b880935f853bc979d96c424c94772f");
  CHECK(digest("qsgd:127,norm=l2") == "68529a45b160f697461fbbe0a1b50ac6");
  CHECK(digest("kbit:4") == "e3bbcb7af8a14735272594d9daeafebf");
  CHECK(digest("kbit:8,scale=channel,mode=affine") == "30820ae79c68490a8547c4233554baaa");
  CHECK(digest("terngrad") == "29377222f620219706ef23b611292504");
  CHECK(digest("terngrad,clip=0") == "24470257df6a90330397277d4cf786fe");
  CHECK(digest("eden:1") == "fee9d3614f3515fb36510bc63443fdbd");
  CHECK(digest("eden:4") == "9dfafb89bb6d0c52938e376c06bfcdd6");
  CHECK(digest("powersgd:4") == "7abc6efc97c5831f3b022c0ee0fc8ffc");
  CHECK(digest("gradzip:4") == "4cbef577568dc5c74f78e2053d8a9615");
  CHECK(digest("countsketch:5x2000") == "c3c60eb9f7c902d6f64bcc800fa9bb26");
  CHECK(digest("countsketch:5x2000,recovery=own") == "d10f4b90122b87223f5422e54aab947b");
  CHECK(digest("kbit:2+ef") == "d68e5a52ee36df62bf77bfa31da7e1b3");
  CHECK(digest("kbit:6,scale=channel,mode=affine+ef") == "01c0643a133ea49ca79b688c4617fa7f");
  CHECK(digest("qsgd:7+ef") == "bcc58e42f1f5bd9b003f168d94a17187");
  CHECK(digest("terngrad+ef") == "767557eecda5600822ef25a8a7af188d");
  CHECK(digest("sign") == "90b3a2713ce797d27650b6749edf0d79");
  CHECK(digest("ecuq:0.5") == "bbe6afe653f74f7b160aa1ce908d9f74");
  CHECK(digest("ecuq:1") == "b38be7f1838f9669c02b9807525ed9ac");
  CHECK(digest("ecuq:3") == "883fa0f0bc5c4edb0d5714add8309623");
  CHECK(digest("ecuq:2") == "db92abe05261f5671c09b5a09333d82a");
  CHECK(digest("ecuq:7.5,mode=centroid") == "4cd8fa02a72fc5e43ae8e42d1367f2ee");
  // Indices as Golomb codes, as nibbles, as a key, and a small number of indices.
  CHECK(digest("topk:0.01+qsgd:8") == "fc80ecb0e6cb841338664361d6fcb257");
  CHECK(digest("topk:0.4+fp16") == "9764028a067cde8fa9c3da08c6c4ced8");
  CHECK(digest("randk:0.05+qsgd:8") == "7987dc9f5564570e40ab6511c90e3160");
  CHECK(digest("threshold:4.5") == "34954765d062d2310f500dd8c91c2065");
}

TEST_CASE("the payload of a fixed vector has the recorded bytes") {
  const Layout layout = layout_of({{"layer.weight", {10, 30}}, {"layer.bias", {10}}, {"gain", {}}});
  std::vector<float> x(layout.elements());
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = (static_cast<float>(i * 37 % 101) - 50.0f) * 0.015625f;
  }
  for (const std::string& spec : specs_to_test()) {
    CAPTURE(spec);
    const std::string text = hex(encode(*codec_of(spec), layout, x, 0x1234567890abcdef, 256));
    // An existing file is never written over: that would hide a change.
    const bool may_write = std::getenv("FL_GOLDEN_REWRITE") != nullptr;
    if (may_write && !std::filesystem::exists(file_name(spec)))
      std::ofstream(file_name(spec)) << text;
    std::ifstream file(file_name(spec));
    REQUIRE(file.is_open());
    std::stringstream golden;
    golden << file.rdbuf();
    CHECK(text == golden.str());
  }
}
