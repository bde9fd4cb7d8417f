// SPDX-License-Identifier: Apache-2.0
// The JSON of spans, held against the specification's mapping, byte for byte.
#include "server/traces/otlp_json.hpp"

#include "shared/base/json.hpp"
#include "shared/base/version.hpp"

#include <doctest/doctest.h>

#include <limits>

namespace fl::test {

using namespace fl::server;
namespace {

Span some_span() {
  Span span;
  span.trace = Digest::parse_hex("5b8efff798038103d269b633813fc60c").value();
  span.id = 0x00ee'e19b'7ec3'c1b1;  // With a zero at the front.
  span.name = "round 7";
  span.begin = 1544712660.25;
  span.end = 1544712661.5;
  return span;
}

nlohmann::json first_span(const std::string& text) {
  return parse_json(text)["resourceSpans"].at(0)["scopeSpans"].at(0)["spans"].at(0);
}

TEST_CASE("ids are hexadecimal, 64-bit integers are strings, enumerations are numbers") {
  Span span = some_span();
  span.parent = 0xeee1'9b7e'c3c1'b174;
  span.attributes = {{"text", std::string("a\"b")},
                     {"whole", std::int64_t{-9'007'199'254'740'993}},
                     {"real", 0.5}};
  span.has_failed = true;
  span.failure = "the norm";
  const auto wanted = parse_json(R"({
    "traceId": "5b8efff798038103d269b633813fc60c",
    "spanId": "00eee19b7ec3c1b1",
    "parentSpanId": "eee19b7ec3c1b174",
    "name": "round 7",
    "kind": 1,
    "startTimeUnixNano": "1544712660250000000",
    "endTimeUnixNano": "1544712661500000000",
    "attributes": [
      {"key": "text", "value": {"stringValue": "a\"b"}},
      {"key": "whole", "value": {"intValue": "-9007199254740993"}},
      {"key": "real", "value": {"doubleValue": 0.5}}],
    "status": {"code": 2, "message": "the norm"}})");
  CHECK(first_span(otlp_json({}, std::array{span})) == wanted);
}

TEST_CASE("a root has no parent, and a span that did not fail no status") {
  const auto json = first_span(otlp_json({}, std::array{some_span()}));
  CHECK(!json.contains("parentSpanId"));
  CHECK(!json.contains("status"));
  CHECK(json["attributes"] == nlohmann::json::array());
}

TEST_CASE("the resource and the scope stand around the spans") {
  const Attributes resource{{"service.name", std::string("fl-server")}};
  const auto json = parse_json(otlp_json(resource, std::array{some_span(), some_span()}));
  const auto& of_resource = json["resourceSpans"].at(0);
  CHECK(json["resourceSpans"].size() == 1);
  CHECK(of_resource["resource"]["attributes"].at(0)["value"]["stringValue"] == "fl-server");
  const auto& of_scope = of_resource["scopeSpans"].at(0);
  CHECK(of_scope["scope"]["name"] == "tributary");
  CHECK(of_scope["scope"]["version"] == software_version);
  CHECK(of_scope["spans"].size() == 2);
}

TEST_CASE("what JSON can't say, or makes no sense, does no harm") {
  Span span = some_span();
  span.attributes = {{"nan", std::numeric_limits<double>::quiet_NaN()},
                     {"inf", std::numeric_limits<double>::infinity()},
                     {"bad", std::string("\xff\x01")}};
  span.begin = 10;
  span.end = 9;  // The clock was set back.
  auto json = first_span(otlp_json({}, std::array{span}));
  CHECK(json["attributes"].size() == 1);
  CHECK(json["startTimeUnixNano"] == "10000000000");
  CHECK(json["endTimeUnixNano"] == "10000000000");
  span.begin = -1;
  span.end = std::numeric_limits<double>::quiet_NaN();
  json = first_span(otlp_json({}, std::array{span}));
  CHECK(json["startTimeUnixNano"] == "0");
  CHECK(json["endTimeUnixNano"] == "0");
  span.begin = span.end = 1e300;
  CHECK(first_span(otlp_json({}, std::array{span}))["endTimeUnixNano"] == "9000000000000000000");
}

}  // namespace
}  // namespace fl::test
