// SPDX-License-Identifier: Apache-2.0
#include "shared/base/json.hpp"

#include "shared/base/printable.hpp"

namespace fl {

namespace {

template <class Json>
std::string text_of(const Json& value, int indent) {
  return printable_json(
      value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace

nlohmann::json parse_json(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text) {
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
