// SPDX-License-Identifier: Apache-2.0
// Checks the announcement of an update (UploadBegin) against the client's task, and puts its
// figures into the history. An error names what does not fit and refuses the update; the client and
// the history see it. Functions without state; any thread.
#pragma once

#include "server/host/upload_grant.hpp"
#include "server/round/tasks.hpp"

#include <span>

namespace fl::server {

/// Any kind of update must have the task's round and version, and a digest of 16 bytes.
[[nodiscard]] Result<void> check_origin(const wire::UploadBegin& begin, const TaskRecord& task);
/// The codec and the reference that the task asked for, and a length that the codec can have for
/// a model of this layout.
[[nodiscard]] Result<void> check_coding(const wire::UploadBegin& begin, const TaskRecord& task,
                                        const Layout& layout);
/// The weight and the steps of the update, no more than the client has examples and its round asked
/// for. `losses`: the training losses of at least the rounds before, the first round's first.
[[nodiscard]] Result<void> check_work(const wire::UploadBegin& begin, const TaskRecord& task,
                                      const RunPlan& plan, std::span<const double> losses);
/// The figures that only the history shows.
[[nodiscard]] Result<void> check_figures(const wire::UploadBegin& begin);

/// The server's own figures of an update that is here.
struct Arrival {
  TimePoint at;             // When the last byte came.
  double round_started_at;  // Unix seconds.
  std::uint64_t raw_bytes;  // The length of the update if it were not coded.
};
/// Puts the figures of an announcement, and the times of its task, into the task's record. No time
/// is longer than the client can have worked.
void note_figures(TaskRecord& record, const Task& task, const UploadGrant& grant,
                  const Arrival& arrival);

}  // namespace fl::server
