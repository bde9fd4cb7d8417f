// SPDX-License-Identifier: Apache-2.0
#include "shared/base/json.hpp"

#include <doctest/doctest.h>

namespace fl {

using nlohmann::json;

TEST_CASE("invalid JSON gives a discarded value, which is neither object nor array nor string") {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1} x", "nul", "\"\xff\""}) {
    CAPTURE(text);
    const json value = parse_json(text);
    CHECK(value.is_discarded());
    CHECK_FALSE((value.is_object() || value.is_array() || value.is_string()));
  }
  CHECK(parse_json("[1, {\"a\": null}]") == json{1, {{"a", nullptr}}});
}

TEST_CASE("bytes that are not UTF-8 are replaced and throw no exception") {
  CHECK(json_text(json{{"path", "/data/\xff.idx"}}) == "{\"path\":\"/data/\xef\xbf\xbd.idx\"}");
  nlohmann::ordered_json both;
  both["b"] = "é\xc3";
  both["a"] = 0.1;
  CHECK(json_text(both, 1) == "{\n \"b\": \"é\xef\xbf\xbd\",\n \"a\": 0.1\n}");
}

}  // namespace fl
