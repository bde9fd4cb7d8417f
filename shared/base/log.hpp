// SPDX-License-Identifier: Apache-2.0
// Logging to standard error: short lines on a terminal, lines with date and level in a file or
// pipe, JSON objects on request. Any thread; nothing here throws. All text passes printable()
// (shared/base/printable.hpp), in JSON as escapes. The functions hide spdlog, because its header
// would make every file that logs compile all of fmt.
#pragma once

#include <fmt/core.h>

#include <string>

namespace fl {

enum class LogLevel { debug, info, warn, error, off };

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args values);

template <class... Values>
void log_at(LogLevel level, fmt::format_string<const Values&...> format, const Values&... values) {
  log_formatted(level, format, fmt::make_format_args(values...));
}
template <class... Values>
void log_info(fmt::format_string<const Values&...> format, const Values&... values) {
  log_formatted(LogLevel::info, format, fmt::make_format_args(values...));
}
template <class... Values>
void log_warn(fmt::format_string<const Values&...> format, const Values&... values) {
  log_formatted(LogLevel::warn, format, fmt::make_format_args(values...));
}
template <class... Values>
void log_error(fmt::format_string<const Values&...> format, const Values&... values) {
  log_formatted(LogLevel::error, format, fmt::make_format_args(values...));
}

/// Writes a line of level info, even if the level set is higher. For progress reports of a program
/// that otherwise logs only warnings.
void log_progress(const std::string& text);

/// Sets the lowest level that is written. The default is `info`.
void set_log_level(LogLevel level);

/// Reports the error that ends the program: as a JSON object if the log is JSON, else as a line
/// "PROGRAM: TEXT".
void log_fatal(fmt::string_view program, fmt::string_view text);

/// Sets up logging. Call it once, at start-up, before other threads exist. Formats:
///   as_json      {"time": "2026-11-21T12:00:00.123+00:00", "level": "warning", "message": "…"}
///   the journal  <6>…           (of systemd, which adds the time)
///   a terminal   12:00:00 …   (each line overwrites a status line, if there is one)
///   otherwise    2026-11-21T12:00:00.123+00:00 warning …
void start_log(bool as_json, bool is_verbose);

}  // namespace fl
