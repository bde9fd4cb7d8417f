// SPDX-License-Identifier: Apache-2.0
// Tokens and addresses: what is written reads back, and errors say what is wrong.
#include "shared/base/io/text_of_bytes.hpp"
#include "tests/identity/fixture.hpp"

namespace fl {
namespace {

using namespace fl::test;

JoinToken token_for(const ServerAddress& server) {
  return make_token(server, sha256(bytes_of("an authority"))).value();
}

std::string why_not(std::string_view text) {
  const auto parsed = parse_token(text);
  REQUIRE(!parsed);
  CHECK(parsed.error().code() == Errc::invalid_input);
  return parsed.error().message();
}

TEST_CASE("SHA-256 agrees with its standard") {
  const Sha256 abc = sha256(bytes_of("abc"));  // FIPS 180-4, example B.1.
  CHECK(to_hex(std::as_bytes(std::span(abc))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("a token reads back, for host names and both kinds of IP address") {
  for (const char* host : {"fl.example.org", "10.0.0.1", "2001:db8::1", "h"}) {
    const JoinToken token = token_for({host, 65535});
    const std::string text = to_string(token);
    CHECK(parse_token(text).value() == token);
    CHECK(parse_token("  " + text + "\r\n").value() == token);
    CHECK(text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789.-_") == text.npos);
  }
  CHECK(parse_token(to_string(token_for({std::string(253, 'h'), 1}))));
  CHECK(token_for({"h", 1}).secret != token_for({"h", 1}).secret);
  CHECK(token_for({"h", 1}).id != token_for({"h", 1}).id);
  CHECK(!make_token({"bad host", 1}, Sha256{}));
  CHECK(!make_token({"h", 0}, Sha256{}));
}

TEST_CASE("every change of one character and every swap of neighbours is detected") {
  const std::string good = to_string(token_for({"fl.example.org", 8443}));
  const std::string all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_. =+";
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char c : all) {
      if (c == good[i]) continue;
      std::string bad = good;
      bad[i] = c;
      CHECK_FALSE(parse_token(bad).has_value());
    }
    std::string swapped = good;
    if (i > 0 && swapped[i] != swapped[i - 1]) {
      std::swap(swapped[i], swapped[i - 1]);
      CHECK_FALSE(parse_token(swapped).has_value());
    }
    CHECK_FALSE(parse_token(good.substr(0, i)).has_value());
    CHECK_FALSE(parse_token(std::string(good).erase(i, 1)).has_value());
  }
  CHECK_FALSE(parse_token(good + "A").has_value());
}

TEST_CASE("errors say what is wrong with a token") {
  const std::string good = to_string(token_for({"fl.example.org", 8443}));
  CHECK(contains(why_not(""), "not a join token"));
  CHECK(contains(why_not("fl-server"), "not a join token"));
  CHECK(contains(why_not("flj.abc"), "not a join token"));
  CHECK(contains(why_not("flj2." + good.substr(5)), "newer"));
  CHECK(contains(why_not(good.substr(0, 7)), "cut short"));
  CHECK(contains(why_not(good.substr(0, good.size() - 1)), "cut short"));
  CHECK(contains(why_not(good + "xx"), "is too long"));
  CHECK(contains(why_not(good.substr(0, 20) + "\n" + good.substr(20)), "white space"));
  std::string bad = good;
  bad[30] = bad[30] == 'A' ? 'B' : 'A';
  CHECK(contains(why_not(bad), "checksum"));
  bad[30] = '$';
  CHECK(contains(why_not(bad), "mistyped"));
}

TEST_CASE("only the SHA-256 of a secret is stored") {
  const JoinToken token = token_for({"h", 1});
  const Sha256 hash = sha256(std::as_bytes(std::span(token.secret)));
  CHECK(token.secret_hash() == to_hex(std::as_bytes(std::span(hash))));
  CHECK(token.id_hex().size() == 16);
  CHECK(equal_in_constant_time(bytes_of("same"), bytes_of("same")));
  CHECK(!equal_in_constant_time(bytes_of("same"), bytes_of("sane")));
  CHECK(!equal_in_constant_time(bytes_of("same"), bytes_of("same+")));
}

TEST_CASE("addresses are read and written; IPv6 is in brackets") {
  for (const char* text : {"fl.example.org:8443", "10.0.0.1:1", "[::1]:65535"})
    CHECK(to_string(parse_server_address(text).value()) == text);
  CHECK(parse_server_address("[2001:db8::1]:443").value() == ServerAddress{"2001:db8::1", 443});
  for (const char* text : {"", "host", "host:", "host:0", "host:65536", "host:1x", ":1", "::1:80",
                           "[host]:80", "[::1]", "[]:1", "a b:1", "[fe80::1%eth0]:1", "h:-1"})
    CHECK(!parse_server_address(text));
}

TEST_CASE("where a port may be missing, IPv6 may do without brackets") {
  const auto read = [](const char* text) { return parse_server_address(text, 8443).value(); };
  CHECK(read("fl.example.org") == ServerAddress{"fl.example.org", 8443});
  CHECK(read("fl.example.org:443") == ServerAddress{"fl.example.org", 443});
  CHECK(read("10.0.0.1") == ServerAddress{"10.0.0.1", 8443});
  for (const char* text : {"::1", "[::1]"}) CHECK(read(text) == ServerAddress{"::1", 8443});
  CHECK(read("[2001:db8::1]") == ServerAddress{"2001:db8::1", 8443});
  CHECK(read("[2001:db8::1]:443") == ServerAddress{"2001:db8::1", 443});
  CHECK(read("2001:db8::1:443") == ServerAddress{"2001:db8::1:443", 8443});  // All an address.
  for (const char* text : {"", ":", "[]", "[host]", "host:", "host:0", "a b", "[::1", "::1]",
                           "fe80::1%eth0", "[fe80::1%eth0]", "[::1]:", "h:1:2"}) {
    CAPTURE(text);
    CHECK(!parse_server_address(text, 8443));
  }
}

}  // namespace
}  // namespace fl
