// SPDX-License-Identifier: Apache-2.0
// Converts JSON to and from text. Only json.cpp instantiates nlohmann's parser and writer, because
// each of them adds two seconds to the compile time of a file. Any thread.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace fl {

/// Parses `text`. If it is not valid JSON, or nested deeper than limits::json_depth_max, the value
/// returned is_discarded(): it is neither an object nor an array nor a string.
[[nodiscard]] nlohmann::json parse_json(std::string_view text);

/// The same, with the members of objects in the order of the text.
[[nodiscard]] nlohmann::ordered_json parse_ordered_json(std::string_view text);

/// Gets the parts of a text one after another. Each function returns whether to go on. Not a
/// callback of the parser: with one, nlohmann needs time quadratic in an object's members.
using JsonScanner = nlohmann::json::json_sax_t;
/// No depth uses up the stack here. False: the text is not valid JSON, or the scanner did not go
/// on.
[[nodiscard]] bool scan_json(std::string_view text, JsonScanner& scanner);

/// Writes the value on one line or, if `indent` is not negative, on several lines indented by that
/// many spaces. Bytes that are not UTF-8 (a file name or a peer's text may have some) become
/// U+FFFD; control characters become escapes, so that the text is safe to show (printable_json()).
[[nodiscard]] std::string json_text(const nlohmann::json& value, int indent = -1);
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace fl
