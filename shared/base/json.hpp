// JSON to and from text. nlohmann's parser and writer are instantiated here alone: each of them
// costs its includer two seconds of compiling.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace fl {

/// Sees each value as it is read, and says whether to keep it.
using JsonWatch = nlohmann::json::parser_callback_t;

/// A value that is_discarded(), and so neither object nor array nor string, where `text` is no
/// JSON.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const JsonWatch& watch = nullptr);

/// In one line, or indented by so many spaces. In UTF-8: other bytes, which file names and what
/// peers send may have, are replaced by U+FFFD.
[[nodiscard]] std::string json_text(const nlohmann::json& value, int indent = -1);
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace fl
