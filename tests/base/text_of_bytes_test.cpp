// SPDX-License-Identifier: Apache-2.0
// Bytes as text: base64url agrees with its standard, and each text means one string of bytes.
#include "shared/base/io/text_of_bytes.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace fl {
namespace {

TEST_CASE("hexadecimal has two lower-case digits per byte") {
  CHECK(to_hex({}).empty());
  CHECK(to_hex(bytes_of(std::string_view("\x00\xff\x1a", 3))) == "00ff1a");
}

TEST_CASE("base64url agrees with its standard") {
  const std::vector<std::pair<std::string, std::string>> vectors = {
      // RFC 4648, section 10.
      {"", ""},           {"f", "Zg"}, {"fo", "Zm8"}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"},
      {"\xfb\xff", "-_8"}};
  for (const auto& [bytes, text] : vectors) {
    CHECK(to_base64url(bytes_of(bytes)) == text);
    CHECK(from_base64url(text).value() == bytes);
  }
  for (const char* bad : {"Z", "Zh", "Zg==", "Zm9v ", " Zm9v", "Zm9v\n", "Z+9v", "Zm/v", "Zm9vY"})
    CHECK(!from_base64url(bad));
}

TEST_CASE("all bytes in all places read back from base64url") {
  std::string bytes;
  for (int i = 0; i < 800; ++i) {
    CAPTURE(i);
    CHECK(from_base64url(to_base64url(bytes_of(bytes))).value() == bytes);
    bytes += static_cast<char>(i * 37 % 256);
  }
}

}  // namespace
}  // namespace fl
