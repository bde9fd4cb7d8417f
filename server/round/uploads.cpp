// SPDX-License-Identifier: Apache-2.0
#include "server/round/uploads.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

namespace fl {

// Begin ----------------------------------------------------------------------------------------

Awaitable<UploadGrant> Uploads::begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin) {
  parts_.control.expect_strand();
  const std::string& client = peer->facts().name;
  const TaskId id{begin.task()};
  Task* const task = co_await await_open_task(client, id);
  if (parts_.control.is_going_down())
    co_return answer_at_once(begin, wire::Verdict::LATER, "the server is shutting down");
  if (task == nullptr || !task->is_open()) {
    UploadGrant grant;
    grant.verdict = co_await verdict_of_earlier(client, begin);
    co_return grant;
  }
  if (!parts_.bulk.has_room()) {
    co_return answer_at_once(
        begin, wire::Verdict::LATER,
        fmt::format("the server's memory for transfers is taken: {} are under way",
                    parts_.bulk.transfers()));
  }
  if (const auto right = check(begin, *task); !right) {
    const VerifyingGuard verifying(*task);
    TaskRecord record = task->record;
    record.state = TaskState::refused;
    record.reason = right.error().message();
    parts_.control.report_of(client, EventLevel::warning,
                             fmt::format("{}: update refused: {}", client, record.reason));
    if (const auto settled = co_await settle(*task, record); !settled)
      co_return answer_at_once(begin, wire::Verdict::LATER, settled.error().message());
    co_return answer_at_once(begin, wire::Verdict::REFUSED, record.reason);
  }
  UploadGrant grant = co_await open(std::move(begin));
  if (!grant.upload) co_return grant;
  Task* const begun = parts_.tasks.find(client, grant.upload->task());
  if (begun == nullptr) {
    // The round was recorded, and its spool cleared, while the file was made.
    if (auto removed = parts_.spool.remove(grant.upload->file_name()); !removed)
      parts_.control.fail(removed.error());
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
  const double deadline_s = parts_.plan.settings.deadline_s;
  if (deadline_s == 0) {
    return std::min(limits::upload_bytes_per_s_min,
                    static_cast<double>(bytes) / seconds(limits::upload_time));
  }
  const RoundMode& mode = parts_.plan.mode;
  const double rounds = mode.is_async ? 1 : 1 + static_cast<double>(mode.late_max);
  return static_cast<double>(bytes) / (deadline_s * rounds);
}

/// The task of an upload, or null. It waits
/// - while the round is closing, so what is answered then is durable,
/// - where tasks outlive their round: for a round that takes the update in, if there will be one.
Awaitable<Task*> Uploads::await_open_task(const std::string& client, TaskId id) {
  const auto must_wait = [this] {
    const Tasks& tasks = parts_.tasks;
    return (tasks.has_round() && tasks.round().is_closing) ||
           (parts_.plan.mode.carries() && !tasks.takes_updates());
  };
  while (!parts_.control.is_stopping() && !parts_.end.is_over() && must_wait())
    co_await parts_.control.changed.wait(never);
  co_return parts_.end.is_over() ? nullptr : parts_.tasks.find(client, id);
}

Awaitable<UploadGrant> Uploads::open(wire::UploadBegin begin) {
  parts_.control.expect_strand();
  UploadGrant grant;
  const Digest digest = Digest::from_bytes(begin.digest()).value();
  auto work = [this, task = TaskId{begin.task()}, bytes = begin.bytes(), digest] {
    return parts_.spool.open(task, bytes, digest);
  };
  auto upload = co_await parts_.compute.run(std::move(work));
  if (!upload) {
    if (!will_pass(upload.error())) {
      parts_.control.fail(upload.error());
    } else if (upload.error().code() == Errc::no_space) {
      parts_.store.report_full_disk(
          fmt::format("task {}: upload postponed: {}", begin.task(), upload.error().message()));
    }
    co_return answer_at_once(begin, wire::Verdict::LATER,
                             "the server can't store it now: " + upload.error().message());
  }
  grant.upload = std::move(*upload);
  grant.chunk_bytes_max = parts_.bulk.chunk_bytes_max(grant.upload->bytes());
  grant.begin = std::move(begin);
  co_return grant;
}

/// The answer to an upload whose task is not open, or whose server stops: its verdict, if the
/// client has not heard it, or that it is too late, or that it is to be announced again.
Awaitable<wire::Verdict> Uploads::verdict_of_earlier(const std::string& client,
                                                     const wire::UploadBegin& begin) {
  auto read = [run = parts_.plan.run.id, id = TaskId{begin.task()}](Store& store) {
    return store.rounds().find_task(run, id);
  };
  const auto found = co_await parts_.store.with_store(std::move(read));
  if (!found) co_return verdict_for(begin, wire::Verdict::LATER, found.error().message());
  if (!*found || (*found)->client != client) {
    co_return verdict_for(begin, wire::Verdict::STALE,
                          fmt::format("task {} of round {} was not given to {}", begin.task(),
                                      begin.round(), client));
  }
  const TaskRecord& task = **found;
  if (task.state == TaskState::accepted) co_return verdict_for(begin, wire::Verdict::ACCEPTED, "");
  if (task.state == TaskState::refused)
    co_return verdict_for(begin, wire::Verdict::REFUSED, task.reason);
  if (task.state == TaskState::offered && !parts_.end.is_over())
    co_return verdict_for(begin, wire::Verdict::LATER, "it is being checked");
  co_return verdict_for(begin, wire::Verdict::STALE,
                        task.reason.empty() ? "the round went on without it" : task.reason);
}

Result<void> Uploads::check(const wire::UploadBegin& begin, const Task& task) const {
  const auto bad = [](Errc code, std::string what) { return Error(code, std::move(what)); };
  const Version base = task.record.base_version;
  if (begin.round() != base + 1) {
    return bad(Errc::conflict,
               fmt::format("it says that its task was offered in round {}; that was "
                           "round {}",
                           begin.round(), base + 1));
  }
  if (begin.version() != base) {
    return bad(Errc::conflict,
               fmt::format("it was trained from model version {}, not {}", begin.version(), base));
  }
  if (!Digest::from_bytes(begin.digest()))
    return bad(Errc::invalid_input, "its digest does not have 16 bytes");
  if (begin.codec() != task.record.codec) {
    return bad(Errc::invalid_input, fmt::format("it is coded as '{}'; the task asked for '{}'",
                                                begin.codec().substr(0, 64), task.record.codec));
  }
  if (begin.reference() != 0 && TaskId{begin.reference()} != task.record.reference) {
    return bad(Errc::conflict, fmt::format("it is the difference to the update of task {}; the "
                                           "task asked for the difference to task {}",
                                           begin.reference(), task.record.reference));
  }
  // A warm-up changes the codec by round.
  const auto codec = parse_codec(task.record.codec).value();
  const std::uint64_t bytes_max = codec->payload_bytes_max(parts_.plan.layout);
  if (begin.bytes() == 0 || begin.bytes() > bytes_max) {
    return bad(Errc::too_large, fmt::format("it has {} bytes; 1 to {} fit the model and codec",
                                            begin.bytes(), bytes_max));
  }
  if (begin.examples() == 0) return bad(Errc::invalid_input, "its weight is 0 examples");
  if (begin.examples() > task.record.examples) {
    return bad(Errc::invalid_input, fmt::format("its weight is {} examples; the client has {}",
                                                begin.examples(), task.record.examples));
  }
  // As many steps as with mini-batches of one example each.
  const std::uint64_t most =
      steps_max(parts_.plan.work_of(base + 1, parts_.past.losses), begin.examples());
  if (begin.steps() == 0 || begin.steps() > most) {
    return bad(Errc::invalid_input,
               fmt::format("it took {} steps; 1 to {} were asked for", begin.steps(), most));
  }
  return check_figures(begin);
}

namespace {

std::string not_a_duration(std::string_view what, double value) {
  return fmt::format("{} is {} s; it must be 0 or more, and finite", what, value);
}

}  // namespace

/// Checks the figures that only the history shows.
Result<void> Uploads::check_figures(const wire::UploadBegin& begin) const {
  const auto is_duration = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!std::isfinite(begin.loss()))
    return Error(Errc::invalid_input, "its training loss is not finite");
  FL_CHECK(check_predictions(begin.predictions()));
  if (!is_duration(begin.train_seconds())) {
    return Error(Errc::invalid_input, not_a_duration("its training time", begin.train_seconds()));
  }
  if (!is_duration(begin.encode_seconds())) {
    return Error(Errc::invalid_input, not_a_duration("its coding time", begin.encode_seconds()));
  }
  if (!is_duration(begin.nmse()))
    return Error(Errc::invalid_input,
                 fmt::format("its coding error (nmse) is {}; it must be 0 or more, and finite",
                             begin.nmse()));
  const wire::SyncTimes& sync = begin.sync();
  for (const double time : {sync.compute_seconds(), sync.exposed_seconds(), sync.hidden_seconds(),
                            sync.coding_seconds()}) {
    if (!is_duration(time))
      return Error(Errc::invalid_input, not_a_duration("a time of its ranks", time));
  }
  return {};
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
  Task* const task = co_await await_open_task(client, id);
  if (task != nullptr) task->has_arrived = false;
  if (task == nullptr || !task->is_open() || control.is_going_down())
    co_return co_await verdict_of_earlier(client, begin);

  std::optional<VerifyingGuard> verifying(std::in_place, *task);
  TaskRecord record = task->record;
  record.examples = begin.examples();
  record.steps = begin.steps();
  record.reference = TaskId{begin.reference()};
  note_figures(record, *task, grant, arrived_at);
  const auto added = co_await add(*task, record, grant);
  if (!added && grant.upload->differs()) ++task->wrong_digests;
  wire::Verdict::Outcome outcome = wire::Verdict::ACCEPTED;
  if (added) {
    parts_.roster.count_update(client);
    record.state = TaskState::accepted;
    record.spool_file = grant.upload->file_name();
  } else {
    outcome = reject(*task, grant, added.error(), record);
  }
  if (outcome == wire::Verdict::LATER) {
    verifying.reset();
    end_tasks_of_expelled();
    control.changed.notify();  // The round may be waiting for this upload to close.
    co_return verdict_for(begin, outcome, record.reason);
  }
  const auto settled = co_await settle(*task, record);
  verifying.reset();
  if (!settled) co_return verdict_for(begin, wire::Verdict::LATER, "the server is shutting down");
  if (outcome == wire::Verdict::ACCEPTED) report_notes(client, begin);
  if (begin.has_holdout() && outcome == wire::Verdict::ACCEPTED)
    co_await record_holdout(std::move(peer), begin);
  co_return verdict_for(begin, outcome, record.reason);
}

/// Puts the client's notes about what went wrong meanwhile into the history.
void Uploads::report_notes(const std::string& client, const wire::UploadBegin& begin) {
  for (int i = 0; i < std::min(begin.notes_size(), limits::upload_notes_max); ++i) {
    parts_.control.report_of(
        client, EventLevel::warning,
        fmt::format("{} says: {}", client, printable(begin.notes(i), limits::reason_bytes_max)));
  }
}

/// The answer after an error of add(): LATER if the client should send the update again; REFUSED if
/// the update is bad, and then the record becomes that of a refused task. The record has the
/// reason.
wire::Verdict::Outcome Uploads::reject(const Task& task, const UploadGrant& grant,
                                       const Error& error, TaskRecord& record) {
  RunControl& control = parts_.control;
  const std::string& client = record.client;
  record.reason = error.message();
  if (error.code() == Errc::cancelled) return wire::Verdict::LATER;
  // Sums that could not be taken back are added up again from the spool by a restart.
  if (error.code() == Errc::io || error.code() == Errc::internal || parts_.sums.is_broken()) {
    control.fail(error);  // A failed fsync is never retried.
    record.reason = "the server's disk failed";
    return wire::Verdict::LATER;
  }
  // Bytes that differ from the announced digest are discarded, and the client sends them again, a
  // few times.
  const bool may_repeat = error.code() == Errc::corrupt && grant.upload->differs() &&
                          task.wrong_digests < limits::wrong_digests_max;
  const bool again = will_pass(error) || may_repeat;
  if (error.code() == Errc::no_space)
    parts_.store.report_full_disk(fmt::format("{}: upload postponed: {}", client, error.message()));
  control.report_of(client, EventLevel::warning,
                    fmt::format("{}: update {}: {}", client, again ? "to be repeated" : "refused",
                                error.message()));
  if (auto removed = parts_.spool.remove(grant.upload->file_name()); !removed)
    control.fail(removed.error());
  if (again) return wire::Verdict::LATER;
  record.state = TaskState::refused;
  if (record.codec.starts_with(delta_prefix)) {
    const bool is_reference_bad =
        record.reference != TaskId::none &&
        (error.code() == Errc::not_found || error.code() == Errc::corrupt);
    auto dropped = parts_.references.refuse(client, record.id, is_reference_bad);
    if (!dropped) control.fail(dropped.error());
  }
  return wire::Verdict::REFUSED;
}

/// Checks the upload's digest, syncs its bytes, adds it to the sums, and waits until its norm is
/// judged. Then it counts, or it is taken back. Errors: Spool::finish, RoundSums::add;
/// invalid_input for an update that is too large; cancelled when the server goes down.
Awaitable<Result<void>> Uploads::add(Task& task, TaskRecord& record, const UploadGrant& grant) {
  auto work = [this, upload = grant.upload, &record]() -> Result<Accumulator::Added> {
    FL_CHECK(parts_.spool.finish(*upload));
    failpoint("upload.synced");
    const TimePoint began = Clock::now();
    auto sum = parts_.sums.add(*upload->file(), upload->bytes(), record);
    record.decode_seconds = std::chrono::duration<double>(Clock::now() - began).count();
    return sum;
  };
  const auto added = co_await parts_.compute.run(std::move(work));
  if (!added) co_return added.error();
  record.norm = added->norms.l2;
  const auto judged = co_await await_judgement(task, record.norm);
  if (judged) {
    parts_.sums.count(*added);
    co_return success();
  }
  if (judged.error().code() == Errc::cancelled)
    co_return judged;  // The process ends, and the sums with it.
  auto undo = [this, upload = grant.upload, &record] {
    return parts_.sums.take_back(*upload->file(), upload->bytes(), record);
  };
  const auto undone = co_await parts_.store.with_room(parts_.compute, std::move(undo));
  if (undone) co_return judged;
  if (will_pass(undone.error())) co_return Error(Errc::cancelled, "the server is shutting down");
  co_return Error(Errc::internal, "an update can't be taken back: " + undone.error().message());
}

/// Waits until it is clear whether an update with this norm counts (norm_limit.hpp).
Awaitable<Result<void>> Uploads::await_judgement(Task& task, double norm) {
  const double limit = parts_.plan.settings.norm_limit;
  if (limit == 0) co_return success();
  RunControl& control = parts_.control;
  OpenRound& round = parts_.tasks.round();
  norms_of(round).add(task.record.client, norm);
  task.has_norm = true;
  for (;;) {
    const JudgedNorm judged = judge(round, norm);
    const bool has_waited = task.waits_for_others;
    task.waits_for_others = judged.verdict == NormVerdict::waits;
    if (judged.verdict == NormVerdict::fits) co_return success();
    if (judged.verdict == NormVerdict::too_large) {
      task.has_norm = false;
      round.norms->refuse(task.record.client);
      round.has_refused_updates = true;
      co_return Error(Errc::invalid_input,
                      fmt::format("its norm is {:.4g}, more than {:.4g} times the median {:.4g} "
                                  "(--norm-limit)",
                                  norm, limit, judged.median));
    }
    if (control.is_going_down()) {
      task.waits_for_others = false;
      co_return Error(Errc::cancelled, "the server is shutting down");
    }
    if (!has_waited) control.changed.notify();  // The round may have enough with this update.
    co_await control.changed.wait(never);
  }
}

JudgedNorm Uploads::judge(OpenRound& round, double norm) {
  if (!round.is_closing) return round.norms->judge(norm);
  if (!round.norms->is_fixed() && !round.has_all_norms()) return {NormVerdict::waits, 0};
  return round.norms->judge_at_end(norm);
}

/// The norms of the round's updates so far; after a restart, of the updates that were accepted
/// before.
RoundNorms& Uploads::norms_of(OpenRound& round) {
  if (round.norms) return *round.norms;
  round.norms.emplace(parts_.past.totals.norms, parts_.plan.settings.norm_limit);
  for (const auto& [client, task] : round.tasks) {
    if (task.record.state == TaskState::accepted) round.norms->add(client, task.record.norm);
  }
  return *round.norms;
}

void Uploads::note_figures(TaskRecord& record, const Task& task, const UploadGrant& grant,
                           TimePoint arrived_at) const {
  const auto& begin = grant.begin;
  record.loss = begin.loss();
  if (begin.has_predictions()) record.predictions = begin.predictions();
  // A client can't have worked longer than the time that has passed. After a restart of the server
  // the offer is younger than the work.
  const double passed = std::max(seconds(arrived_at - task.offered_at),
                                 Clock::unix_seconds() - parts_.tasks.round().record.started_at);
  record.train_seconds = std::min(begin.train_seconds(), passed);
  record.update_bytes = begin.bytes();
  record.raw_bytes = parts_.plan.layout.elements() * sizeof(float);
  record.encode_seconds = std::min(begin.encode_seconds(), passed);
  record.nmse = begin.nmse();
  record.ready_seconds = std::max(seconds(task.begun_at - task.offered_at),
                                  record.train_seconds + record.encode_seconds);
  if (const std::uint64_t sent = begin.bytes() - grant.offset; sent > 0) {
    record.upload_seconds = seconds(arrived_at - grant.began_at) *
                            static_cast<double>(begin.bytes()) / static_cast<double>(sent);
  }
  record.update_digest = grant.upload->digest();
  record.ranks = begin.sync().ranks();
  record.compute_seconds = std::min(begin.sync().compute_seconds(), passed);
  record.exposed_seconds = std::min(begin.sync().exposed_seconds(), passed);
  record.hidden_seconds = std::min(begin.sync().hidden_seconds(), passed);
  record.coding_seconds = std::min(begin.sync().coding_seconds(), passed);
  record.fp32_steps = std::min(begin.sync().fp32_steps(), begin.steps());
  // The client's time ends here: from now on its update may wait for others.
  record.seconds = std::max(seconds(arrived_at - task.offered_at), record.ready_seconds);
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

// Verdicts -------------------------------------------------------------------------------------

Awaitable<Result<void>> Uploads::settle(Task& task, TaskRecord record) {
  parts_.control.expect_strand();
  FL_ASSERT(task.is_verifying);
  // After a restart of the server the offer is younger than the work.
  if (record.seconds == 0)
    record.seconds = std::max(seconds(Clock::now() - task.offered_at), record.ready_seconds);
  const auto committed = co_await parts_.verdicts.commit_verdict(record);
  if (committed && parts_.tasks.has_round()) {
    parts_.tasks.round().update_task(task, record);
  } else if (committed) {
    task.record = record;  // The task is carried to the next round.
  }
  if (record.state != TaskState::accepted) {
    task.note_failure();
    note_miss(task);
  }
  // The round may be waiting for this verdict, and other uploads for this one's place.
  parts_.control.changed.notify();
  co_return committed;
}

Awaitable<void> Uploads::lose_task(std::string client, TaskId id, std::string reason) {
  parts_.control.expect_strand();
  RunControl& control = parts_.control;
  Tasks& tasks = parts_.tasks;
  const auto must_wait = [&] {
    return !control.is_restored() || (tasks.has_round() && tasks.round().is_closing);
  };
  while (!control.is_going_down() && must_wait()) co_await control.changed.wait(never);
  if (control.is_going_down() || parts_.end.is_over()) co_return;
  Task* const task = id == any_task ? tasks.task_of(client) : tasks.find(client, id);
  if (task == nullptr || !task->is_open()) co_return;
  const VerifyingGuard verifying(*task);
  TaskRecord record = task->record;
  record.state = TaskState::lost;
  record.reason = std::move(reason);
  [[maybe_unused]] const auto settled = co_await settle(*task, std::move(record));
}

void Uploads::note_miss(const Task& task) {
  const std::string& client = task.record.client;
  const Duration pause = parts_.roster.note_miss(client, Clock::now() - task.offered_at);
  if (pause == Duration::zero()) return;
  parts_.control.report_of(
      client, EventLevel::warning,
      fmt::format(
          "{} was asked {} times in a row without an update that counts: it is not asked for "
          "{:.0f} s",
          client, parts_.roster.misses_of(client), seconds(pause)));
}

void Uploads::end_tasks_of_expelled() {
  parts_.control.expect_strand();
  for (const auto& [client, reason] : parts_.roster.expelled()) {
    const Task* const task = parts_.tasks.task_of(client);
    if (task != nullptr && task->is_open())
      parts_.group.spawn(lose_task(client, task->record.id, reason));
  }
}

}  // namespace fl
