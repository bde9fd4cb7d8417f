// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/json_line.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl {

using nlohmann::json;

bool send_json(SocketLine& line, const json& message, TimePoint until) {
  return line.send(json_text(message), until);
}

Result<std::optional<json>> receive_json(SocketLine& line, Duration wait, std::size_t bytes_max) {
  FL_TRY(const auto text, line.receive(wait, bytes_max));
  if (!text) return std::optional<json>();
  FL_TRY(json message, parse_message(*text, line.peer()));
  return std::optional(std::move(message));
}

Result<json> parse_message(const std::string& text, std::string_view peer) {
  json message = parse_json(text);
  if (message.is_object()) return message;
  return Error(Errc::invalid_input, fmt::format("{} sent a line that is not a JSON object: {}",
                                                peer, text.substr(0, 100)));
}

std::string member_text(const json& message, const char* name) {
  const auto found = message.is_object() ? message.find(name) : message.end();
  return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::uint64_t member_number(const json& message, const char* name) {
  const auto found = message.is_object() ? message.find(name) : message.end();
  return found != message.end() ? number_in<std::uint64_t>(*found).value_or(0) : 0;
}

std::optional<std::int64_t> member_integer(const json& message, const char* name) {
  const auto found = message.is_object() ? message.find(name) : message.end();
  return found != message.end() ? number_in<std::int64_t>(*found) : std::nullopt;
}

}  // namespace fl
