// SPDX-License-Identifier: Apache-2.0
#include "shared/base/json.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

namespace fl {

namespace {

template <class Json>
std::string text_of(const Json& value, int indent) {
  return printable_json(
      value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

/// Whether arrays and objects are nested more than limits::json_depth_max deep, or there are more
/// than `values_max` values. The code that writes, copies or compares a value calls itself for each
/// level, so a peer could use up the stack. And a value takes many times the bytes of its text.
bool is_over_limits(std::string_view text, std::size_t values_max) {
  std::size_t depth = 0;
  std::size_t values = 1;  // The rest stand behind a bracket or comma; empty arrays count twice.
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      if (c == '"') is_in_string = false;
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limits::json_depth_max || ++values > values_max) return true;
    } else if (c == ',') {
      if (++values > values_max) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  return parse_json(text, limits::json_values_max);
}

nlohmann::json parse_json(std::string_view text, std::size_t values_max) {
  if (is_over_limits(text, values_max)) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
  if (is_over_limits(text, limits::json_values_max))
    return nlohmann::ordered_json::value_t::discarded;
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool scan_json(std::string_view text, JsonScanner& scanner) {
  return nlohmann::json::sax_parse(text, &scanner);
}

std::string json_text(const nlohmann::json& value, int indent) { return text_of(value, indent); }

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return text_of(value, indent);
}

std::string short_json(const nlohmann::json& value) {
  constexpr std::size_t shown_max = 40;
  std::string text = json_text(value);
  if (text.size() > shown_max) text = printable(text, shown_max);
  return text;
}

void throw_wrong_json(const std::string& what) {
  throw nlohmann::json::type_error::create(302, what, nullptr);
}

}  // namespace fl
