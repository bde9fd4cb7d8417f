// SPDX-License-Identifier: Apache-2.0
// Rows of the history as pages show them: each with its key, by which the next page begins.
// Pages reads them (pages.hpp).
#pragma once

#include "server/history/records.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// An event, and its place in the order of all.
struct EventRow {
  std::int64_t id = 0;
  EventRecord event;
};
struct AuditRow {
  std::int64_t id = 0;
  AuditRecord audit;
};

/// Figures of a client's newest upload in a run.
struct NewestUpload {
  double bytes_per_s = 0;
  std::uint64_t examples = 0;  // The client's update was trained on so many.
};

/// Which events or rows of the audit a page has: those before `before`, newest first.
struct LogQuery {
  std::int64_t before = 0;              // 0: from the newest.
  std::optional<RunId> run = {};        // The events of this run, and those outside of any run.
  EventLevel level = EventLevel::info;  // Events of this level and of worse ones.
  std::optional<AuditKind> kind = {};   // For the audit only.
  std::string text = {};                // Contained in the text or the client's name.
  int limit = 0;
};

/// A task with the times and bytes that only the database has.
struct TaskRow {
  TaskRecord task;
  double offered_at = 0;
  double decided_at = 0;  // 0: not yet.
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
};

/// A round, open or closed.
struct RoundRow {
  Round round = 0;
  double started_at = 0;
  double ended_at = 0;  // 0: it is open.
  std::uint32_t target = 0;
};

/// A run's main metric at the first and the last version that was measured.
struct MetricEnds {
  std::string metric;
  std::optional<double> first;
  std::optional<double> last;
};

/// A run with what it came to so far.
struct RunRow {
  RunRecord run;
  Round rounds_closed = 0;
  double seconds = 0;  // The seconds of all its closed rounds.
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  MetricEnds values;
};

struct VersionRow {
  CheckpointRecord checkpoint;
  double made_at = 0;
};

/// One figure of the accepted updates of a round, by which their clients can be compared.
struct SpreadFigures {
  std::string name;  // The figure's name.
  std::vector<double> values;
};

/// The newest row of each log.
struct NewestRows {
  std::int64_t event = 0;
  std::int64_t audit = 0;
};

}  // namespace fl::server
