// SPDX-License-Identifier: Apache-2.0
// The spans of a closed round, made of the same rows of the history as the dashboard's timeline.
//
// Ids are functions of the run's key, the round and the task: whoever exports a round a second time
// gives it the same ones, and so does a server that was restarted.
#pragma once

#include "server/history/page_records.hpp"
#include "server/history/recorded_rounds.hpp"
#include "server/traces/span.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace fl::server {

[[nodiscard]] Digest trace_id_of(const std::string& run_key, Round round);

/// The number of a round's tasks in each state.
using TaskCounts = std::array<std::uint32_t, task_state_count>;

/// The span of a decided task, and within it the parts of its time: download (with everything
/// before the training), training, coding, upload, waiting (with the check and the verdict). Parts
/// that the client has not reported are missing. `by_client`: with the client's name.
void add_task_spans(const Digest& trace, const TaskRow& row, bool by_client,
                    std::vector<Span>& spans);

/// The round's own span, and within it aggregation (making the new version) and store (making the
/// round durable). `summary`: the round's row.
void add_round_spans(const Digest& trace, const RunRecord& run, const RoundSummary& summary,
                     const RecordedRound& recorded, const TaskCounts& counts,
                     std::vector<Span>& spans);

}  // namespace fl::server
