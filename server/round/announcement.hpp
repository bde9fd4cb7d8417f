// SPDX-License-Identifier: Apache-2.0
// What a client announces of its update (UploadBegin): whether it fits the task that the client was
// given, and what of it goes into the history. Errors name what does not fit; they refuse the
// update, and the client and the history see them. Functions without state; any thread.
#pragma once

#include "server/host/upload_grant.hpp"
#include "server/round/tasks.hpp"

#include <span>

namespace fl::server {

/// What any kind of update must fit: the task's round and version, and a digest of 16 bytes.
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

/// What the server knows of an update that is here, beside what the client says.
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
