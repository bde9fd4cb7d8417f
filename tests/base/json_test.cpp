// SPDX-License-Identifier: Apache-2.0
#include "shared/base/json.hpp"

#include "shared/base/limits.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fl {

using nlohmann::json;

namespace {

/// Counts what it is given.
struct CountedScanner : JsonScanner {
  int parts = 0;
  bool one() { return ++parts > 0; }
  bool null() override { return one(); }
  bool boolean(bool) override { return one(); }
  bool number_integer(number_integer_t) override { return one(); }
  bool number_unsigned(number_unsigned_t) override { return one(); }
  bool number_float(number_float_t, const string_t&) override { return one(); }
  bool string(string_t&) override { return one(); }
  bool binary(binary_t&) override { return one(); }
  bool start_object(std::size_t) override { return one(); }
  bool key(string_t&) override { return one(); }
  bool end_object() override { return one(); }
  bool start_array(std::size_t) override { return one(); }
  bool end_array() override { return one(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }
};

}  // namespace

TEST_CASE("invalid JSON gives a discarded value, which is neither object nor array nor string") {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1} x", "nul", "\"\xff\""}) {
    CAPTURE(text);
    const json value = parse_json(text);
    CHECK(value.is_discarded());
    CHECK_FALSE((value.is_object() || value.is_array() || value.is_string()));
  }
  CHECK(parse_json("[1, {\"a\": null}]") == json{1, {{"a", nullptr}}});
}

TEST_CASE("JSON that is nested too deep is discarded, whatever opens its levels") {
  // Valid: each level is closed again. A copy of it would use up the stack.
  for (const std::size_t depth : {limits::json_depth_max + 1, std::size_t{3'000'000}}) {
    const std::string lists = std::string(depth, '[') + std::string(depth, ']');
    std::string objects;
    for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    objects += "1" + std::string(depth, '}');
    for (const std::string& text : {lists, objects}) {
      CHECK(parse_json(text).is_discarded());
      CHECK(parse_ordered_json(text).is_discarded());
      CountedScanner scanner;
      CHECK(scan_json(text, scanner));
      CHECK(scanner.parts >= static_cast<int>(2 * depth));
    }
  }
}

TEST_CASE("JSON of the deepest nesting is read, and brackets in texts do not count") {
  const std::size_t depth = limits::json_depth_max;
  CHECK_FALSE(parse_json(std::string(depth, '[') + std::string(depth, ']')).is_discarded());
  // One level after another; brackets and an escaped quote in a string.
  std::string flat = "[\"" + std::string(1000, '[') + "\\\"{{\"";
  for (int i = 0; i < 1000; ++i) flat += ",[]";
  CHECK(parse_json(flat + "]").size() == 1001);
  // A bracket that opens behind a string with an escape at the end counts.
  CHECK(parse_json("[\"\\\\\"," + std::string(depth, '[') + std::string(depth, ']') + "]")
            .is_discarded());
}

TEST_CASE("JSON of too many values is discarded before any of them takes memory") {
  const auto list = [](std::string_view value, std::size_t count) {
    std::string text = "[";
    for (std::size_t i = 0; i < count; ++i) text.append(i == 0 ? "" : ",").append(value);
    return text + "]";
  };
  // The outer array is a value, too. Commas and brackets in texts are none.
  for (const std::string_view value : {"1", "{}", "[]", R"(",[{,")"}) {
    CAPTURE(value);
    const bool is_container = value == "{}" || value == "[]";
    const std::size_t most = is_container ? 50 : 100;
    CHECK_FALSE(parse_json(list(value, most), 101).is_discarded());
    CHECK(parse_json(list(value, most + 1), 101).is_discarded());
  }
  const std::string objects = list("{}", limits::json_values_max);
  CHECK(parse_json(objects).is_discarded());
  CHECK(parse_ordered_json(objects).is_discarded());

  // All tensors that a model may have, with all the dimensions that they may have, are fewer.
  std::string shape = "1";
  for (std::size_t i = 1; i < limits::dimensions_max; ++i) shape += ",1";
  const std::string tensors = list(R"({"name":"a","shape":[)" + shape + "]}", limits::tensors_max);
  CHECK(parse_json(tensors).size() == limits::tensors_max);
}

TEST_CASE("bytes that are not UTF-8 are replaced and throw no exception") {
  CHECK(json_text(json{{"path", "/data/\xff.idx"}}) == "{\"path\":\"/data/\xef\xbf\xbd.idx\"}");
  nlohmann::ordered_json both;
  both["b"] = "é\xc3";
  both["a"] = 0.1;
  CHECK(json_text(both, 1) == "{\n \"b\": \"é\xef\xbf\xbd\",\n \"a\": 0.1\n}");
}

TEST_CASE("numbers are read exactly or not at all") {
  const auto whole = [](const char* text) { return number_in<std::uint32_t>(parse_json(text)); };
  CHECK(whole("0") == 0);
  CHECK(whole("4294967295") == 4294967295);
  CHECK(whole("20.0") == 20);  // JSON has one kind of number.
  CHECK(whole("1e3") == 1000);
  for (const char* text : {"-1", "1.5", "4294967296", "1180591620717411303424", "-0.5", "true",
                           "null", "\"7\"", "[7]", "{}"}) {
    CAPTURE(text);
    CHECK_FALSE(whole(text));
  }
  CHECK(number_in<std::int64_t>(parse_json("-9223372036854775808")) == INT64_MIN);
  CHECK_FALSE(number_in<std::int64_t>(parse_json("9223372036854775808")));
  // A double can't hold it exactly.
  CHECK_FALSE(number_in<std::int64_t>(parse_json("9007199254740993.0")));
  CHECK(number_in<std::uint64_t>(parse_json("18446744073709551615")) == UINT64_MAX);
  CHECK(number_in<double>(parse_json("0.1")) == 0.1);
  CHECK(number_in<double>(parse_json("18446744073709551615")) == 0x1p64);
  CHECK(number_in<double>(parse_json("-3")) == -3);
  CHECK_FALSE(number_in<double>(parse_json("\"nan\"")));
  CHECK_FALSE(number_in<float>(parse_json("1e300")));
  CHECK(numbers_of<std::int32_t>() == "a whole number from -2147483648 to 2147483647");
}

TEST_CASE("nlohmann's own functions read numbers in the same way, and say what is wrong") {
  CHECK(json(7).get<std::uint8_t>() == 7);
  CHECK(json{{"a", 7}}.value("a", std::uint32_t{0}) == 7);
  CHECK(json{1, 2.0}.get<std::vector<std::uint16_t>>() == std::vector<std::uint16_t>{1, 2});
  std::string said;
  try {
    (void)json{1, -1}.get<std::vector<std::uint16_t>>();
  } catch (const json::exception& error) {
    said = error.what();
  }
  CHECK(said.ends_with("it must be a whole number from 0 to 65535, not -1"));
  CHECK_THROWS_AS((json{{"a", 1.5}}.value("a", std::uint32_t{0})), json::exception);
  CHECK_THROWS_AS((void)json(true).get<int>(), json::exception);
  CHECK_THROWS_AS((void)json(300).get<std::uint8_t>(), json::exception);
  nlohmann::ordered_json ordered{{"a", -1}};
  CHECK_THROWS_AS((void)ordered["a"].get<unsigned>(), json::exception);
}

}  // namespace fl
