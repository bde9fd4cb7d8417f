// SPDX-License-Identifier: Apache-2.0
// Makes text from outside safe to show: a peer's, another user's, a file's. Such text must not
// control a terminal, forge a line of the log, or make a line look like another one. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Whether all of the text is valid UTF-8.
[[nodiscard]] bool is_utf8(std::string_view text);

/// The text with '?' in place of control characters (C0, DEL, C1), of characters that break a line
/// or change the direction of text, and of each byte that is not valid UTF-8.
[[nodiscard]] std::string printable(std::string_view text);

/// The printable() text. If it has more than `bytes_max` bytes, its beginning and "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t bytes_max);

/// The names with commas between them; of more than `most` only the first, and how many more.
[[nodiscard]] std::string first_names(const std::vector<std::string>& names, std::size_t most);

/// The printable() text as a field of a CSV file (RFC 4180): one with a comma or a quote is put in
/// quotes, and its own quotes are doubled.
[[nodiscard]] std::string csv_field(std::string_view text);

/// The text as the inside of a JSON string: what printable() replaces is escaped, and bytes that
/// are not valid UTF-8 become U+FFFD.
[[nodiscard]] std::string json_escaped(std::string_view text);

/// Valid JSON with what printable() replaces in strings as escapes: the same value, safe to show.
[[nodiscard]] std::string printable_json(std::string_view json);

}  // namespace fl
