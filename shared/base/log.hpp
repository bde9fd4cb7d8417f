// How a program logs: lines for a terminal, lines with time for a pipe, JSON objects on request.
// Call once, at start-up, before other threads.
#pragma once

namespace fl {

/// To standard error: as JSON objects, {"time": …, "level": …, "message": …}; else on a terminal
/// with short times, a line overwriting a status line (see StatusLine); else as
/// "2026-11-21T12:00:00.123 warning …".
void start_log(bool as_json, bool is_verbose);

}  // namespace fl
