// SPDX-License-Identifier: Apache-2.0
// Where traces go, as tables of what a user may set.
#include "server/traces/otlp_settings.hpp"
#include "tests/support/variables.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <utility>

namespace fl::test {

using namespace fl::server;
namespace {

Result<std::optional<OtlpSettings>> settings_of(const std::string& flag, Variables variables) {
  return read_otlp_settings(flag, environment_of(std::move(variables)));
}

std::string url_of(const std::string& flag, Variables variables) {
  const auto settings = settings_of(flag, std::move(variables)).value();
  return settings ? to_string(settings->url) + " " + settings->source : "none";
}

std::string text_of_attribute(const OtlpSettings& settings, const std::string& key) {
  for (const Attribute& each : settings.resource)
    if (each.key == key) return std::get<std::string>(each.value);
  return "";
}

TEST_CASE("the flag goes before the variable for traces, and that before the one for all") {
  const Variables both{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318"},
                       {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:4318/in"}};
  CHECK(url_of("http://flag:1", both) == "http://flag:1/v1/traces --otlp-endpoint");
  CHECK(url_of("", both) == "http://own:4318/in OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
  CHECK(url_of("off", both) == "none");
  CHECK(url_of("", {}) == "none");
  CHECK(url_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}}) == "none");
  for (const Variables& off :
       {Variables{{"OTEL_SDK_DISABLED", "True"}}, Variables{{"OTEL_TRACES_EXPORTER", "none"}}}) {
    Variables all = both;
    all.insert(off.begin(), off.end());
    CHECK(url_of("", all) == "none");
    CHECK(url_of("http://flag:1", all) != "none");
  }
}

TEST_CASE("only an address for all signals, and a bare flag, get the path of traces") {
  const auto general = [](const char* value) {
    return url_of("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", value}});
  };
  CHECK(general("http://c:4318").starts_with("http://c:4318/v1/traces "));
  CHECK(general("http://c:4318/").starts_with("http://c:4318/v1/traces "));
  CHECK(general("https://c/otlp/").starts_with("https://c:443/otlp/v1/traces "));
  CHECK(url_of("", {{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318"}})
            .starts_with("http://c:4318/ "));
  CHECK(url_of("http://c:4318/other", {}).starts_with("http://c:4318/other "));
  CHECK(url_of("http://c:4318/v1/traces", {}).starts_with("http://c:4318/v1/traces "));
}

TEST_CASE("headers, time limit, authority and names come from the environment") {
  const auto plain = settings_of("http://c:1", {}).value().value();
  CHECK(plain.headers.empty());
  CHECK(plain.timeout == Duration(limits::otlp_timeout));
  CHECK(text_of_attribute(plain, "service.name") == "fl-server");
  CHECK(!text_of_attribute(plain, "service.version").empty());
  CHECK(plain.advice.empty());

  const auto rich =
      settings_of("http://c:1",
                  {{"OTEL_EXPORTER_OTLP_HEADERS", " Authorization = Basic%20YTpi , x-team=a=b,,"},
                   {"OTEL_EXPORTER_OTLP_TIMEOUT", "2500"},
                   {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem"},
                   {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"},
                   {"OTEL_RESOURCE_ATTRIBUTES", "service.name=x,deployment.environment=a%2Cb"},
                   {"OTEL_SERVICE_NAME", "coordinator"}})
          .value()
          .value();
  CHECK(rich.headers == HttpHeaders{{"Authorization", "Basic YTpi"}, {"x-team", "a=b"}});
  CHECK(rich.timeout == Duration(std::chrono::milliseconds(2500)));
  CHECK(rich.authority_file == "/etc/ca.pem");
  CHECK(text_of_attribute(rich, "service.name") == "coordinator");
  CHECK(text_of_attribute(rich, "deployment.environment") == "a,b");
  CHECK(rich.advice.find("OTEL_EXPORTER_OTLP_PROTOCOL is grpc") == 0);

  const auto own = settings_of("http://c:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"},
                                              {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"}});
  CHECK(own.value()->headers == HttpHeaders{{"b", "2"}});
}

TEST_CASE("an error names the flag or the variable, and never what may be a secret") {
  const std::pair<const char*, const char*> rows[] = {
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:secret@c:1"},
      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "secret"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "secret"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=sec%ret"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0d%0ab:c"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "a=secret%"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "content-length=secret"},
      {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "0"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "60001"},
      {"OTEL_RESOURCE_ATTRIBUTES", "secret"},
  };
  for (const auto& row : rows) {
    const char* const name = row.first;
    const char* const value = row.second;
    CAPTURE(name);
    CAPTURE(value);
    Variables variables{{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"}};
    variables[name] = value;
    const auto settings = settings_of("", std::move(variables));
    REQUIRE(!settings);
    CHECK(settings.error().message().find(name) == 0);
    CHECK(settings.error().message().find("secret") == std::string::npos);
  }
  const auto flag = settings_of("collector:4318", {});
  REQUIRE(!flag);
  CHECK(flag.error().message().starts_with("--otlp-endpoint: "));
}

}  // namespace
}  // namespace fl::test
