// SPDX-License-Identifier: Apache-2.0
// Messages through a socket: one JSON object on each line. Trainer programs
// (docs/design/trainer-protocol.md) and the ranks of a site (docs/design/sites.md) speak so. The
// functions block as SocketLine does; those on members are pure.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "shared/base/json.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

/// False: the peer has gone, or did not read until `until`.
[[nodiscard]] bool send_json(SocketLine& line, const nlohmann::json& message, TimePoint until);

/// The next message, which is an object; nothing if none is complete after `wait`. Errors: those of
/// SocketLine::receive(); invalid_input for a line that is not a JSON object.
[[nodiscard]] Result<std::optional<nlohmann::json>> receive_json(
    SocketLine& line, Duration wait, std::size_t bytes_max = limits::trainer_message_bytes_max);

/// The message that a line holds. Errors: invalid_input, naming `peer`, if it is no JSON object.
[[nodiscard]] Result<nlohmann::json> parse_message(const std::string& text, std::string_view peer);

/// The member, or "" or 0 if it is not there or of another type.
[[nodiscard]] std::string member_text(const nlohmann::json& message, const char* name);
[[nodiscard]] std::uint64_t member_number(const nlohmann::json& message, const char* name);
/// None if it is not there, or no whole number of 64 bits.
[[nodiscard]] std::optional<std::int64_t> member_integer(const nlohmann::json& message,
                                                         const char* name);

}  // namespace fl
