// SPDX-License-Identifier: Apache-2.0
// Which proxy leads to which server: as tables of what a user may write.
#include "shared/net/proxy.hpp"
#include "tests/support/variables.hpp"

#include <doctest/doctest.h>

#include <map>

namespace fl {
namespace {

std::string chosen(const ProxyRules& rules, const ServerAddress& server) {
  const auto proxy = rules.proxy_for(server);
  if (!proxy) return "error: " + proxy.error().message();
  return *proxy ? (*proxy)->shown() : "direct";
}

TEST_CASE("a proxy is HOST:PORT with or without http://, a login and a final slash") {
  struct Row {
    const char* text;
    ServerAddress address;
    std::optional<std::string> credentials;
  };
  const Row rows[] = {
      {"proxy:3128", {"proxy", 3128}, std::nullopt},
      {"http://proxy:3128/", {"proxy", 3128}, std::nullopt},
      {"HTTP://10.1.2.3:80", {"10.1.2.3", 80}, std::nullopt},
      {"http://[::1]:8080", {"::1", 8080}, std::nullopt},
      {"http://u:p@proxy:1", {"proxy", 1}, "u:p"},
      {"u@proxy:1", {"proxy", 1}, "u:"},
      {"http://a%40b:p%3A%2fw%25@proxy:1", {"proxy", 1}, "a@b:p:/w%"},
      {"http://u:p@ss/word@proxy:1", {"proxy", 1}, "u:p@ss/word"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const auto proxy = parse_proxy(row.text, "--proxy");
    REQUIRE(proxy.has_value());
    CHECK(proxy->address == row.address);
    CHECK(proxy->credentials == row.credentials);
  }
}

TEST_CASE("a wrong proxy is refused without repeating its password") {
  for (const char* text : {"proxy", "http://", "http://u:secret@proxy", "socks5://u:secret@p:1080",
                           "https://u:secret@p:443", "http://u:secret@p:1/path",
                           "http://u:secret@p:0", "http://u:sec%ret@p:1", "http://a%3Ab:secret@p:1",
                           "ftp://p:1", "http://u:secret@p:70000", "http://::1:3128"}) {
    CAPTURE(text);
    const auto proxy = parse_proxy(text, "HTTPS_PROXY");
    REQUIRE(!proxy);
    CHECK(proxy.error().code() == Errc::invalid_input);
    CHECK(proxy.error().message().starts_with("HTTPS_PROXY: "));
    CHECK(proxy.error().message().find("secret") == std::string::npos);
    CHECK(proxy.error().message().find("sec%ret") == std::string::npos);
  }
  CHECK(parse_proxy("http://u:secret@p:1", "x")->shown() == "http://p:1 (from x)");
}

TEST_CASE("NO_PROXY has names with all below them, networks, ports and a star") {
  struct Row {
    const char* list;
    ServerAddress server;
    bool is_named;
  };
  const Row rows[] = {
      {"*", {"anything", 1}, true},
      {"*,x", {"anything", 1}, false},
      {"", {"a", 1}, false},
      {" , ,", {"a", 1}, false},
      {"example.org", {"example.org", 1}, true},
      {"example.org", {"fed.Example.ORG", 1}, true},
      {".example.org", {"fed.example.org", 1}, true},
      {".example.org", {"example.org", 1}, true},
      {"example.org.", {"fed.example.org.", 1}, true},
      {"example.org", {"notexample.org", 1}, false},
      {"org", {"example.org", 1}, true},
      {"*.example.org", {"fed.Example.org", 1}, true},
      {"*.example.org", {"a.fed.example.org.", 1}, true},
      {"*.example.org", {"example.org", 1}, false},
      {"*.example.org", {"notexample.org", 1}, false},
      {"*.example.org:443", {"fed.example.org", 443}, true},
      {"*.example.org:443", {"fed.example.org", 444}, false},
      {"a,*.example.org", {"fed.example.org", 1}, true},
      {"*.", {"fed.example.org", 1}, false},
      {"*.10.0.0.1", {"10.0.0.1", 1}, false},
      {"a b\tc", {"c", 1}, true},
      {"a,b", {"ab", 1}, false},
      {"host:443", {"host", 443}, true},
      {"host:443", {"host", 444}, false},
      {"10.0.0.0/8", {"10.200.3.4", 1}, true},
      {"10.9.9.9/8", {"10.200.3.4", 1}, true},
      {"10.0.0.0/8", {"11.0.0.1", 1}, false},
      {"0.0.0.0/0", {"11.0.0.1", 1}, true},
      {"10.0.0.0/8", {"name", 1}, false},
      {"10.0.0.0/33", {"10.0.0.1", 1}, false},
      {"10.0.0.0/x", {"10.0.0.1", 1}, false},
      {"192.168.1.7", {"192.168.1.7", 9}, true},
      {"192.168.1.7:9", {"192.168.1.7", 9}, true},
      {"1", {"192.168.1.1", 9}, false},
      {"::1", {"::1", 9}, true},
      {"[::1]", {"::1", 9}, true},
      {"[::1]:9", {"::1", 9}, true},
      {"[::1]:8", {"::1", 9}, false},
      {"fd00::/8", {"fd12::3", 9}, true},
      {"fd00::/8", {"fe80::3", 9}, false},
      {"10.0.0.0/8", {"::ffff:10.1.2.3", 9}, true},
      {"0:0:0:0:0:0:0:1", {"::1", 9}, true},
      {"[", {"x", 9}, false},
      {".", {"x", 9}, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.list);
    CAPTURE(row.server.host);
    CHECK(is_without_proxy(row.list, row.server) == row.is_named);
  }
}

TEST_CASE("the flag comes before the variables, in curl's order") {
  const ServerAddress server{"fed.example.org", 443};
  CHECK(chosen(ProxyRules(), server) == "direct");
  CHECK(chosen(ProxyRules("", test::environment_of({})), server) == "direct");
  std::map<std::string, std::string> values{{"ALL_PROXY", "d:4"}};
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://d:4 (from ALL_PROXY)");
  values["all_proxy"] = "c:3";
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://c:3 (from all_proxy)");
  values["HTTPS_PROXY"] = "b:2";
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://b:2 (from HTTPS_PROXY)");
  values["https_proxy"] = "a:1";
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://a:1 (from https_proxy)");
  CHECK(chosen(ProxyRules("e:5", test::environment_of(values)), server) ==
        "http://e:5 (from --proxy)");
  CHECK(chosen(ProxyRules("none", test::environment_of(values)), server) == "direct");
  values["https_proxy"] = "";  // As if it were not set.
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://b:2 (from HTTPS_PROXY)");

  values["NO_PROXY"] = ".example.org";
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) == "direct");
  CHECK(chosen(ProxyRules("e:5", test::environment_of(values)), server) == "direct");
  values["no_proxy"] = "other";  // It comes before NO_PROXY.
  CHECK(chosen(ProxyRules("", test::environment_of(values)), server) ==
        "http://b:2 (from HTTPS_PROXY)");
}

TEST_CASE("a proxy of a wrong kind is an error only for servers that need it") {
  const ProxyRules rules(
      "", test::environment_of({{"ALL_PROXY", "socks5h://p:1080"}, {"NO_PROXY", "localhost"}}));
  CHECK(chosen(rules, {"localhost", 1}) == "direct");
  CHECK(chosen(rules, {"other", 1}).find("not to socks5h:// ones") != std::string::npos);
}

}  // namespace
}  // namespace fl
