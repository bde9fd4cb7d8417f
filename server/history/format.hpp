// The history as a person (tables), a program (JSON) or a spreadsheet (CSV) reads it. Pure
// functions of the store's records: no files, no clock. Each text ends with a newline.
//
// Tables have human units (B, kB, MB, … of 1000; seconds, minutes, hours), "-" for what is unknown,
// and times in UTC. JSON and CSV have plain numbers in the store's units (bytes, seconds, Unix
// seconds) under the column names of the view round_summary; unknown is null in one and nothing
// between the commas in the other.
#pragma once

#include "server/history/store.hpp"

#include <string>
#include <vector>

namespace fl {

enum class Format { table, json, csv };

/// One line a round; the table with a line of totals: seconds, clients and bytes summed, of the
/// losses and the accuracy the last known.
[[nodiscard]] std::string format_rows(const std::vector<RoundSummary>& rounds, Format format);

/// One line for each run and codec: what it sent and what fp32 would have, what coding took and
/// lost, and the bytes of all traffic for each point (hundredth) that the accuracy has gained.
[[nodiscard]] std::string format_rows(const std::vector<CodecSummary>& codecs, Format format);

/// One line for each task of a run whose clients need not have the same codec: which one, why, and
/// what became of it.
[[nodiscard]] std::string format_rows(const std::vector<CodecAsked>& asked, Format format);

/// One line for each event.
[[nodiscard]] std::string format_rows(const std::vector<EventRecord>& events, Format format);

/// Name, enrolled, last seen, certificate serial, revoked, and whether it only evaluates.
[[nodiscard]] std::string format_rows(const std::vector<ClientRecord>& clients, Format format);

/// One line for each run, those in the queue too.
[[nodiscard]] std::string format_rows(const std::vector<RunSummary>& runs, Format format);

/// What stands above a run's table, in two lines.
[[nodiscard]] std::string format_run_header(const RunRecord& run);

}  // namespace fl
