// SPDX-License-Identifier: Apache-2.0
// Formats the history for a person (tables), a program (JSON) or a spreadsheet (CSV). Pure
// functions of the store's records: no files, no clock. Each text ends with a newline.
//
// Tables have human units (B, kB, MB, … of 1000; seconds, minutes, hours), "-" for what is unknown,
// and times in UTC. JSON and CSV have plain numbers in the store's units (bytes, seconds, Unix
// seconds) under the names of the database's columns. What is unknown is null in JSON, and an empty
// field in CSV.
#pragma once

#include "server/history/best_version.hpp"
#include "server/history/records.hpp"

#include <string>
#include <vector>

namespace fl::server {

enum class Format { table, json, csv };

/// One line for each round. The table ends with a line of totals: the sums of seconds, clients and
/// bytes, and the last known losses and values of the run's main metric. "~" stands before a value
/// that is only about right (Combine::none). The round that made a run's best version is marked, in
/// JSON and CSV as is_best, and below the table of one run a line says which version that is.
[[nodiscard]] std::string format_rows(const std::vector<RoundSummary>& rounds,
                                      const BestVersions& best, Format format);

/// One line for each version and metric: who has measured it, and the value.
[[nodiscard]] std::string format_rows(const std::vector<MetricSummary>& metrics, Format format);

/// One line for each run and codec: what was sent and what fp32 would have sent, what coding took
/// and lost, and the bytes of all traffic for each point (hundredth) of accuracy that was gained.
[[nodiscard]] std::string format_rows(const std::vector<CodecSummary>& codecs, Format format);

/// One line for each task of a run whose clients may have different codecs: which codec, why, and
/// what became of the task.
[[nodiscard]] std::string format_rows(const std::vector<CodecAsked>& asked, Format format);

/// One line for each event.
[[nodiscard]] std::string format_rows(const std::vector<EventRecord>& events, Format format);
/// One event as a line of its own, or as a line of JSON. Not as CSV.
[[nodiscard]] std::string format_event(const EventRecord& event, Format format);

/// One line for each row of the audit.
[[nodiscard]] std::string format_rows(const std::vector<AuditRecord>& rows, Format format);

/// Name, enrolled, last seen, certificate serial, revoked, and whether it only evaluates.
[[nodiscard]] std::string format_rows(const std::vector<ClientRecord>& clients, Format format);

/// Name, role, since when, revoked. Never the token's hash.
[[nodiscard]] std::string format_rows(const std::vector<OperatorRecord>& operators, Format format);

/// One line for each run, with those in the queue.
[[nodiscard]] std::string format_rows(const std::vector<RunSummary>& runs, Format format);

/// The two lines above a run's table.
[[nodiscard]] std::string format_run_header(const RunRecord& run);

}  // namespace fl::server
