// How a program logs: lines for a terminal, lines with time for a pipe, JSON objects on request.
// Call once, at start-up, before other threads.
#pragma once

namespace fl {

enum class LogStyle {
  terminal,  // Short times; a line overwrites a status line (see StatusLine).
  lines,     // "2026-11-21T12:00:00.123 warning …"
  json,      // {"time": …, "level": …, "message": …}
};

void start_log(LogStyle style, bool is_verbose);

}  // namespace fl
