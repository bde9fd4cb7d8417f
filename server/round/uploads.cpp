// SPDX-License-Identifier: Apache-2.0
#include "server/round/uploads.hpp"

#include "server/round/announcement.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace fl::server {

// Begin ----------------------------------------------------------------------------------------

Awaitable<UploadGrant> Uploads::begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin) {
  parts_.control.expect_strand();
  const std::string& client = peer->facts().name;
  const TaskId id{begin.task()};
  Task* const task = co_await parts_.decisions.await_task(client, id);
  if (parts_.control.is_going_down())
    co_return answer_at_once(begin, wire::Verdict::LATER, "the server is shutting down");
  if (task == nullptr || !task->is_open()) {
    UploadGrant grant;
    grant.verdict = co_await parts_.decisions.verdict_of_earlier(client, begin);
    co_return grant;
  }
  if (auto answer = parts_.intake.answer_to(begin, client)) {
    UploadGrant grant;
    grant.verdict = std::move(*answer);
    co_return grant;
  }
  if (!parts_.bulk.has_room()) {
    co_return answer_at_once(
        begin, wire::Verdict::LATER,
        fmt::format("the server's memory for transfers is taken: {} are under way",
                    parts_.bulk.transfers()));
  }
  if (const auto right = check(begin, *task); !right) {
    const DecidingGuard deciding(*task);
    TaskRecord record = task->record;
    record.state = TaskState::refused;
    record.reason = right.error().message();
    parts_.control.report_of(client, EventLevel::warning,
                             fmt::format("{}: update refused: {}", client, record.reason));
    if (const auto ended = co_await parts_.decisions.end_task(*task, record); !ended)
      co_return answer_at_once(begin, wire::Verdict::LATER, ended.error().message());
    co_return answer_at_once(begin, wire::Verdict::REFUSED, record.reason);
  }
  // The grant keeps the message until the upload's end.
  const int notes_over = begin.notes_size() - limits::upload_notes_max;
  if (notes_over > 0) begin.mutable_notes()->DeleteSubrange(limits::upload_notes_max, notes_over);
  UploadGrant grant = co_await open(std::move(begin));
  if (!grant.upload) co_return grant;
  Task* const begun = parts_.tasks.find(client, grant.upload->task());
  if (begun == nullptr) {
    // The round was recorded, and its spool cleared, while the file was made.
    parts_.files.discard(*grant.upload);
    co_return answer_at_once(grant.begin, wire::Verdict::STALE, "the round went on without it");
  }
  grant.bytes_per_s_min = least_pace(grant.begin.bytes());
  grant.began_at = Clock::now();
  grant.offset = grant.upload->next_offset();
  if (begun->begun_at == TimePoint{}) begun->begun_at = grant.began_at;
  co_return grant;
}

/// The slowest pace that is in time: at it an upload of `bytes` bytes takes all of its time.
double Uploads::least_pace(std::uint64_t bytes) const {
  const double deadline_s = parts_.control.plan.settings.deadline_s;
  if (deadline_s == 0) {
    return std::min(limits::upload_bytes_per_s_min,
                    static_cast<double>(bytes) / seconds(limits::upload_time));
  }
  const RoundMode& mode = parts_.control.plan.mode;
  const double rounds = mode.is_async ? 1 : 1 + static_cast<double>(mode.late_max);
  return static_cast<double>(bytes) / (deadline_s * rounds);
}

/// Opens the spool's file for an announced update; `begin` has been checked. When the file can't be
/// opened the grant's verdict says LATER.
Awaitable<UploadGrant> Uploads::open(wire::UploadBegin begin) {
  const Digest digest = Digest::from_bytes(begin.digest()).value();
  const TaskId id{begin.task()};
  auto upload = co_await parts_.files.open(id, begin.bytes(), digest);
  if (!upload) {
    co_return answer_at_once(begin, wire::Verdict::LATER,
                             "the server can't store it now: " + upload.error().message());
  }
  UploadGrant grant;
  grant.upload = std::move(*upload);
  grant.chunk_bytes_max = parts_.bulk.chunk_bytes_max(grant.upload->bytes());
  grant.begin = std::move(begin);
  co_return grant;
}

Result<void> Uploads::check(const wire::UploadBegin& begin, const Task& task) const {
  FL_CHECK(check_origin(begin, task.record));
  FL_CHECK(parts_.intake.check(begin, task));
  if (!parts_.intake.reads_figures()) return {};
  FL_CHECK(check_work(begin, task.record, parts_.control.plan, parts_.past.losses));
  return check_figures(begin);
}

// End ------------------------------------------------------------------------------------------

Awaitable<wire::Verdict> Uploads::finish(std::shared_ptr<Peer> peer, UploadGrant grant) {
  parts_.control.expect_strand();
  RunControl& control = parts_.control;
  const std::string client = peer->facts().name;
  const auto& begin = grant.begin;
  const TimePoint arrived_at = Clock::now();
  const TaskId id{begin.task()};
  if (Task* const arrived = parts_.tasks.find(client, id)) arrived->has_arrived = true;
  Task* const task = co_await parts_.decisions.await_task(client, id);
  if (task != nullptr) task->has_arrived = false;
  if (task == nullptr || !task->is_open() || control.is_going_down())
    co_return co_await parts_.decisions.verdict_of_earlier(client, begin);

  std::optional<DecidingGuard> deciding(std::in_place, *task);
  TaskRecord record = task->record;
  record.examples = begin.examples();
  record.steps = begin.steps();
  record.reference = TaskId{begin.reference()};
  note_figures(record, *task, grant,
               {arrived_at, parts_.tasks.round().record.started_at,
                parts_.control.plan.layout_of(task->part).bytes()});
  const auto taken = co_await parts_.intake.take(*task, record, grant);
  if (!taken && grant.upload->differs()) ++task->wrong_digests;
  wire::Verdict::Outcome outcome = wire::Verdict::ACCEPTED;
  if (taken && *taken == UpdateIntake::Taken::held) {
    outcome = wire::Verdict::HELD;
  } else if (taken) {
    record.state = TaskState::accepted;
    record.spool_file = grant.upload->file_name();
  } else {
    outcome = reject(*task, grant, taken.error(), record);
  }
  if (outcome == wire::Verdict::LATER || outcome == wire::Verdict::HELD) {
    deciding.reset();
    parts_.decisions.end_tasks_of_expelled();
    control.changed.notify();  // The round may be waiting for this upload to close.
    co_return verdict_for(begin, outcome, record.reason);
  }
  const auto ended = co_await parts_.decisions.end_task(*task, record);
  deciding.reset();
  if (!ended) co_return verdict_for(begin, wire::Verdict::LATER, "the server is shutting down");
  if (outcome == wire::Verdict::ACCEPTED) report_notes(client, begin);
  if (begin.has_holdout() && outcome == wire::Verdict::ACCEPTED)
    co_await record_holdout(std::move(peer), begin);
  co_return verdict_for(begin, outcome, record.reason);
}

/// Writes what the client's program says about an update that counts (UploadBegin.notes) as events.
void Uploads::report_notes(const std::string& client, const wire::UploadBegin& begin) {
  for (const std::string& note : begin.notes()) {
    parts_.control.report_of(
        client, EventLevel::warning,
        fmt::format("{} says: {}", client, printable(note, limits::reason_bytes_max)));
  }
}

/// The answer after an error of UpdateIntake::take(): LATER if the client should send the update
/// again; REFUSED if the update is bad, and then the record becomes that of a refused task. The
/// record has the reason.
wire::Verdict::Outcome Uploads::reject(const Task& task, const UploadGrant& grant,
                                       const Error& error, TaskRecord& record) {
  RunControl& control = parts_.control;
  const std::string& client = record.client;
  record.reason = error.message();
  if (error.code() == Errc::cancelled) return wire::Verdict::LATER;
  if (error.code() == Errc::io || error.code() == Errc::internal) {
    control.fail(error);  // A failed fsync is never retried.
    record.reason = "the server's disk failed";
    return wire::Verdict::LATER;
  }
  // Bytes that differ from the announced digest are discarded, and the client sends them again, a
  // few times.
  const bool may_repeat = error.code() == Errc::corrupt && grant.upload->differs() &&
                          task.wrong_digests < limits::wrong_digests_max;
  const bool again = will_pass(error) || may_repeat;
  parts_.files.report_if_full(client, error);
  control.report_of(client, EventLevel::warning,
                    fmt::format("{}: update {}: {}", client, again ? "to be repeated" : "refused",
                                error.message()));
  parts_.files.discard(*grant.upload);
  if (again) return wire::Verdict::LATER;
  record.state = TaskState::refused;
  if (auto forgotten = parts_.intake.forget(record, error); !forgotten)
    control.fail(forgotten.error());
  return wire::Verdict::REFUSED;
}

/// A client measures the version that it trains from on its held-out data.
Awaitable<void> Uploads::record_holdout(std::shared_ptr<Peer> peer,
                                        const wire::UploadBegin& begin) {
  wire::Evaluation holdout;
  holdout.set_version(begin.version());
  holdout.set_examples(begin.holdout_examples());
  holdout.set_loss(begin.holdout_loss());
  if (begin.has_holdout_predictions()) holdout.set_predictions(begin.holdout_predictions());
  *holdout.mutable_metrics() = begin.holdout_metrics();
  holdout.set_own_loss(begin.own_loss());
  *holdout.mutable_own_metrics() = begin.own_metrics();
  co_await parts_.evaluations.record(std::move(peer), std::move(holdout));
}

}  // namespace fl::server
