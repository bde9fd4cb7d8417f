// SPDX-License-Identifier: Apache-2.0
#include "server/round/task_decisions.hpp"

#include "server/host/upload_grant.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <utility>

namespace fl::server {

Awaitable<Task*> TaskDecisions::await_task(const std::string& client, TaskId id) {
  const auto must_wait = [this] {
    const Tasks& tasks = parts_.tasks;
    return (tasks.has_round() && tasks.round().is_closing) ||
           (parts_.control.plan.mode.carries() && !tasks.takes_updates());
  };
  while (!parts_.control.is_stopping() && !parts_.end.is_over() && must_wait())
    co_await parts_.control.changed.wait(never);
  co_return parts_.end.is_over() ? nullptr : parts_.tasks.find(client, id);
}

Awaitable<wire::Verdict> TaskDecisions::verdict_of_earlier(const std::string& client,
                                                           const wire::UploadBegin& begin) {
  auto read = [run = parts_.control.plan.run.id, id = TaskId{begin.task()}](Store& store) {
    return store.rounds().find_task(run, id);
  };
  const auto found = co_await parts_.control.store.with_store(std::move(read));
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

Awaitable<Result<void>> TaskDecisions::end_task(Task& task, TaskRecord record) {
  parts_.control.expect_strand();
  FL_ASSERT(task.is_deciding && task.record.state == TaskState::offered);
  FL_ASSERT(record.id == task.record.id && record.state != TaskState::offered);
  // An update that counts can only be one of the open round, which does not close meanwhile.
  FL_ASSERT(record.state != TaskState::accepted || parts_.tasks.has_round());
  if (record.state == TaskState::accepted) parts_.roster.count_update(record.client);
  if (record.state == TaskState::refused) note_failure(record.client, record.reason);
  // After a restart of the server the offer is younger than the work.
  if (record.seconds == 0)
    record.seconds = std::max(seconds(Clock::now() - task.offered_at), record.ready_seconds);
  std::vector<TaskRecord> records{record};
  const auto committed = co_await parts_.verdicts.commit_verdicts(std::move(records));
  FL_ASSERT(task.is_deciding);
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

Awaitable<Result<void>> TaskDecisions::accept_all(
    std::vector<std::pair<Task*, TaskRecord>> updates) {
  parts_.control.expect_strand();
  std::vector<TaskRecord> records;
  for (auto& [task, record] : updates) {
    FL_ASSERT(task->is_deciding && task->record.state == TaskState::offered);
    FL_ASSERT(record.id == task->record.id && record.state == TaskState::accepted);
    record.seconds = std::max(seconds(Clock::now() - task->offered_at), record.ready_seconds);
    records.push_back(record);
  }
  FL_CO_CHECK(co_await parts_.verdicts.commit_verdicts(std::move(records)));
  for (auto& [task, record] : updates) {
    parts_.roster.count_update(record.client);
    parts_.tasks.round().update_task(*task, std::move(record));
  }
  parts_.control.changed.notify();
  co_return success();
}

Awaitable<void> TaskDecisions::lose_task(std::string client, TaskId id, std::string reason) {
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
  const DecidingGuard deciding(*task);
  TaskRecord record = task->record;
  record.state = TaskState::lost;
  record.reason = std::move(reason);
  [[maybe_unused]] const auto ended = co_await end_task(*task, std::move(record));
}

Awaitable<void> TaskDecisions::fail_task(std::string client, TaskId id, std::string reason) {
  if (parts_.tasks.find(client, id) != nullptr) note_failure(client, reason);
  co_await lose_task(std::move(client), id, std::move(reason));
}

void TaskDecisions::note_failure(const std::string& client, const std::string& reason) {
  parts_.roster.note_failure(client, reason);
  std::string why = parts_.roster.common_failure(parts_.control.plan.settings.min_clients);
  if (why.empty() || parts_.evaluations.has_end()) return;
  parts_.control.report(EventLevel::warning, fmt::format("the run ends: {}", why));
  parts_.evaluations.take_end(std::move(why));
}

void TaskDecisions::note_miss(Task& task) {
  if (std::exchange(task.is_counted_miss, true)) return;
  const std::string& client = task.record.client;
  const Duration pause = parts_.roster.bench().note_miss(client, Clock::now() - task.offered_at);
  if (pause == Duration::zero()) return;
  parts_.control.report_of(client, EventLevel::warning, parts_.roster.bench().why(client));
  if (const auto peer = parts_.roster.find(client)) parts_.roster.bench().tell(*peer);
}

void TaskDecisions::note_misses() {
  for (auto& [client, task] : parts_.tasks.round().tasks) {
    if (!task.is_open() || task.has_arrived || task.has_keys) continue;
    task.has_missed = true;
    if (!parts_.control.plan.mode.carries()) note_miss(task);
  }
}

Awaitable<Result<bool>> TaskDecisions::drop_overdue() {
  const auto overdue = parts_.tasks.overdue(Clock::now());
  std::list<DecidingGuard> guards;  // While a guard lives, nothing else decides on the task.
  for (Task* const task : overdue) guards.emplace_back(*task);
  for (Task* const task : overdue) {
    TaskRecord record = task->record;
    record.state = TaskState::lost;
    record.reason = fmt::format("no update within {} s", parts_.control.plan.settings.deadline_s);
    FL_CO_CHECK(co_await end_task(*task, std::move(record)));
    guards.pop_front();
  }
  co_return !overdue.empty();
}

void TaskDecisions::end_tasks_of_expelled() {
  parts_.control.expect_strand();
  for (const auto& [client, reason] : parts_.roster.expelled()) {
    const Task* const task = parts_.tasks.task_of(client);
    if (task != nullptr && task->is_open())
      parts_.control.group.spawn(lose_task(client, task->record.id, reason));
  }
}

}  // namespace fl::server
