// SPDX-License-Identifier: Apache-2.0
// When the first bytes of a connection are a whole ClientHello: one that OpenSSL makes, cut and
// divided in all ways, and bytes that are none.
#include "server/net/client_hello.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/client_hello.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

HelloStage look(const std::string& bytes) {
  return look_at_hello(bytes_of(std::string_view(bytes)));
}

std::string record(const std::string& body, char type = 22) {
  const auto size = static_cast<unsigned>(body.size());
  return std::string{type, 3, 1, static_cast<char>(size >> 8), static_cast<char>(size)} + body;
}

TEST_CASE("a ClientHello is whole with its last byte, and not before") {
  const std::string hello = make_client_hello();
  REQUIRE(hello.size() > 100);
  for (std::size_t size = 0; size < hello.size(); ++size)
    REQUIRE(look(hello.substr(0, size)) == HelloStage::partial);
  CHECK(look(hello) == HelloStage::whole);
  CHECK(look(hello + "what follows") == HelloStage::whole);
}

TEST_CASE("a ClientHello may be divided among records of any size") {
  const std::string body = make_client_hello().substr(5);
  for (const std::size_t step : {1, 2, 3, 4, 5, 100}) {
    std::string divided;
    for (std::size_t at = 0; at < body.size(); at += step) {
      CHECK(look(divided) == HelloStage::partial);
      divided += record(body.substr(at, step));
    }
    CHECK(look(divided) == HelloStage::whole);
    CHECK(look(divided.substr(0, divided.size() - 1)) == HelloStage::partial);
  }
}

TEST_CASE("what can't become a ClientHello is told from its first bytes") {
  CHECK(look("GET / HTTP/1.1") == HelloStage::none);
  CHECK(look("G") == HelloStage::none);
  CHECK(look("\x16\x02") == HelloStage::none);              // SSL 2.
  CHECK(look(record("\x02")) == HelloStage::none);          // A ServerHello.
  CHECK(look(record("")) == HelloStage::none);              // A record without a byte.
  CHECK(look("\x16\x03\x01\x40\x01") == HelloStage::none);  // A record that is too large.
  CHECK(look(record("\x01") + record("x", 23)) == HelloStage::none);
}

TEST_CASE("a ClientHello may be so large, and no larger") {
  const auto of_size = [](std::size_t size) {
    std::string body{1, 0, static_cast<char>(size >> 8), static_cast<char>(size)};
    body.append(size, 'x');
    return record(body);
  };
  CHECK(look(of_size(limits::client_hello_bytes_max - 9)) == HelloStage::whole);
  const std::string larger = of_size(limits::client_hello_bytes_max - 8);
  CHECK(look(larger.substr(0, limits::client_hello_bytes_max - 1)) == HelloStage::partial);
  CHECK(look(larger.substr(0, limits::client_hello_bytes_max)) == HelloStage::none);
  CHECK(look(larger) == HelloStage::none);
}

}  // namespace
}  // namespace fl::test
