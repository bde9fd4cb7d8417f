// How a program logs: lines for a terminal, lines with time for a pipe, JSON objects on request.
// From any thread, and nothing throws. spdlog does the work behind these few functions: its own
// header makes every file that logs compile the whole of fmt.
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

/// Of level info, and written whatever the level is: how far a program is that says little else.
void log_progress(const std::string& text);

/// With '?' for control characters: what a peer says must not move the operator's cursor.
[[nodiscard]] std::string printable(std::string text);

/// What is below is not written; `info` until told.
void set_log_level(LogLevel level);

/// A program's last words, as it ends with an error: an object more where the log is JSON, else
/// "PROGRAM: TEXT" as a command line says it.
void log_fatal(fmt::string_view program, fmt::string_view text);

/// Call once, at start-up, before other threads. To standard error: as JSON objects, {"time": …,
/// "level": …, "message": …}; else on a terminal with short times, a line overwriting a status line
/// (see StatusLine); else as "2026-11-21T12:00:00.123 warning …".
void start_log(bool as_json, bool is_verbose);

}  // namespace fl
