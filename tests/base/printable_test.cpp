// SPDX-License-Identifier: Apache-2.0
#include "shared/base/printable.hpp"
#include "shared/base/json.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace fl {

TEST_CASE("text for people is kept as it is") {
  for (const char* text : {"", "client-1", "für 'ä' 100 %", "日本語", "\xf0\x9f\x98\x80",
                           "\xc2\xa0", "\xf4\x8f\xbf\xbf", "a b"}) {
    CAPTURE(text);
    CHECK(printable(text) == text);
    CHECK(json_escaped(text) == text);
  }
}

TEST_CASE("what could control a terminal or deceive a reader is replaced, in JSON escaped") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x1b", "\\u001b"},         {"\n", "\\u000a"},
      {"\r", "\\u000d"},           {std::string(1, '\0'), "\\u0000"},
      {"\x7f", "\\u007f"},         {"\xc2\x80", "\\u0080"},
      {"\xc2\x9b", "\\u009b"},     {"\xc2\x9f", "\\u009f"},
      {"\xd8\x9c", "\\u061c"},     {"\xe2\x80\x8e", "\\u200e"},
      {"\xe2\x80\x8f", "\\u200f"}, {"\xe2\x80\xa8", "\\u2028"},
      {"\xe2\x80\xa9", "\\u2029"}, {"\xe2\x80\xae", "\\u202e"},
      {"\xe2\x81\xa6", "\\u2066"}, {"\xe2\x81\xa9", "\\u2069"},
      {"\xef\xbb\xbf", "\\ufeff"}};
  for (const auto& row : cases) {
    CAPTURE(row.second);
    CHECK(printable("a" + row.first + "b") == "a?b");
    CHECK(json_escaped("a" + row.first + "b") == "a" + row.second + "b");
  }
}

TEST_CASE("each byte that is not UTF-8 is replaced") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff", "?"},
      {"\x80", "?"},  // A continuation without a beginning.
      {"\x9b", "?"},  // C1 as one byte, which some terminals obey.
      {"\xc3", "?"},  // Cut.
      {"\xe2\x80", "??"},
      {"\xc0\xaf", "??"},  // "/" in more bytes than it needs.
      {"\xe0\x80\xaf", "???"},
      {"\xf0\x82\x82\xac", "????"},
      {"\xed\xa0\x80", "???"},  // The surrogate U+D800.
      {"\xed\xbf\xbf", "???"},
      {"\xf4\x90\x80\x80", "????"},  // Beyond U+10FFFF.
      {"\xf8\x88\x80\x80\x80", "?????"},
      {"\xc3\x28", "?("}};
  for (const auto& row : cases) {
    CAPTURE(row.second);
    CHECK(printable("a" + row.first + "b") == "a" + row.second + "b");
    CHECK_FALSE(is_utf8("a" + row.first + "b"));
    // In a JSON string the bytes are always valid, whatever they were.
    const auto value = parse_json("\"" + json_escaped(row.first) + "\"");
    REQUIRE(value.is_string());
  }
}

TEST_CASE("a control character is valid UTF-8 all the same") {
  CHECK(is_utf8(""));
  CHECK(is_utf8("Größe 重み \U0001f9e0\t\n\x7f\u202e"));
}

TEST_CASE("a long text is cut between two characters") {
  CHECK(printable("abcdef", 6) == "abcdef");
  CHECK(printable("abcdef", 5) == "abcde...");
  CHECK(printable("abcdé", 5) == "abcd...");
  CHECK(printable("\xbf\xbf\xbf\xbf", 2) == "...");
}

TEST_CASE("of many names the first are shown") {
  CHECK(first_names({}, 2).empty());
  CHECK(first_names({"a", "b"}, 2) == "a, b");
  CHECK(first_names({"a", "b", "c", "d"}, 2) == "a, b and 2 more");
}

TEST_CASE("a field of CSV is quoted where it must be") {
  CHECK(csv_field("a b;'") == "a b;'");
  CHECK(csv_field("a,b") == "\"a,b\"");
  CHECK(csv_field("say \"a\"") == "\"say \"\"a\"\"\"");
  CHECK(csv_field("a\nb\x1b") == "a?b?");
}

TEST_CASE("JSON text escapes what a terminal would obey and keeps its value") {
  const nlohmann::json value{{"reason",
                              "\xc2\x9b"
                              "2J\xe2\x80\xae\x7f\x1bé"}};
  const std::string text = json_text(value, 1);
  CHECK(text == "{\n \"reason\": \"\\u009b2J\\u202e\\u007f\\u001bé\"\n}");
  CHECK(parse_json(text) == value);
}

}  // namespace fl
