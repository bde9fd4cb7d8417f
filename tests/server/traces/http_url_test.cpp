// SPDX-License-Identifier: Apache-2.0
// URLs of HTTP services, and headers for them: as tables of what a user may write.
#include "server/traces/http_url.hpp"

#include "server/traces/http_client.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl {

using namespace fl::server;
namespace {

TEST_CASE("a URL has a scheme, a host, and perhaps a port and a path") {
  struct Row {
    const char* text;
    HttpUrl url;
    const char* shown;
  };
  const Row rows[] = {
      {"http://collector", {false, {"collector", 80}, "/"}, "http://collector:80/"},
      {"https://collector", {true, {"collector", 443}, "/"}, "https://collector:443/"},
      {"HTTP://10.1.2.3:4318/v1/traces",
       {false, {"10.1.2.3", 4318}, "/v1/traces"},
       "http://10.1.2.3:4318/v1/traces"},
      {"https://[::1]:4318/", {true, {"::1", 4318}, "/"}, "https://[::1]:4318/"},
      {"https://[::1]/x", {true, {"::1", 443}, "/x"}, "https://[::1]:443/x"},
      {"http://c:1?key=a@b:c", {false, {"c", 1}, "/?key=a@b:c"}, "http://c:1/?key=a@b:c"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto url = parse_http_url(row.text);
    REQUIRE(url.has_value());
    CHECK(*url == row.url);
    CHECK(to_string(*url) == row.shown);
    CHECK(parse_http_url(row.shown).value() == row.url);
  }
}

TEST_CASE("a wrong URL is refused without repeating a password in it") {
  for (const char* text :
       {"", "collector:4318", "grpc://collector:4317", "http://", "http://:80", "http://c:0",
        "http://c:65536", "http://c:x", "http://::1/", "http://u:secret@c:1/", "http://c/a secret",
        "http://c/#secret", "http://c/\r\nsecret: 1", "http://c/secr\xc3\xa9t", "http:/c"}) {
    CAPTURE(text);
    const auto url = parse_http_url(text);
    REQUIRE(!url);
    CHECK(url.error().code() == Errc::invalid_input);
    CHECK(url.error().message().find("secret") == std::string::npos);
  }
}

TEST_CASE("a header can't forge another one, or what the request is") {
  CHECK(check_http_header("Authorization", "Bearer abc=="));
  CHECK(check_http_header("x-honeycomb-team", "caf\xc3\xa9\tx"));
  for (const auto& header :
       {std::pair("", "x"), std::pair("a b", "x"), std::pair("a:", "x"), std::pair("a\r\nb", "x"),
        std::pair("a", "x\r\nb: y"), std::pair("a", "x\ny"), std::pair("Content-Length", "0"),
        std::pair("host", "x"), std::pair("Transfer-Encoding", "chunked")}) {
    CAPTURE(header.first);
    CHECK(!check_http_header(header.first, header.second));
  }
}

}  // namespace
}  // namespace fl
