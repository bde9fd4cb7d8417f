// SPDX-License-Identifier: Apache-2.0
// Decides tasks: waits until a task may be decided, makes its final state durable, and says what
// was decided before. On the engine's strand.
#pragma once

#include "server/round/run_end.hpp"
#include "server/round/verdict_log.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/wire/message.hpp"

#include <string>
#include <utility>
#include <vector>

namespace fl::server {

class TaskDecisions {
 public:
  struct Parts {
    RunControl& control;
    Roster& roster;
    Tasks& tasks;
    VerdictLog& verdicts;
    Evaluations& evaluations;
    const RunEnd& end;
  };
  explicit TaskDecisions(const Parts& parts) : parts_(parts) {}

  /// The task of an upload, or null if the client has none with this id, or the run is over.
  /// It waits
  /// - while the round is closing, so what is answered then is durable,
  /// - where tasks outlive their round: for a round that takes the update in, if there will be one.
  Awaitable<Task*> await_task(const std::string& client, TaskId id);
  /// The answer to an upload whose task is not open, or whose server stops: its verdict, if the
  /// client has not heard it, or that it is too late, or that it is to be announced again.
  Awaitable<wire::Verdict> verdict_of_earlier(const std::string& client,
                                              const wire::UploadBegin& begin);

  /// Ends a task with a final state, and returns when that is durable. The caller holds a
  /// DecidingGuard of the task: until then nothing else decides on it, and its round can't close.
  Awaitable<Result<void>> end_task(Task& task, TaskRecord record);
  /// Makes all these updates count, in one transaction: those of a masked round, which the server
  /// can only add up together. Otherwise as end_task().
  Awaitable<Result<void>> accept_all(std::vector<std::pair<Task*, TaskRecord>> updates);
  static constexpr TaskId any_task = TaskId::none;  // Real ids are above it.
  /// Ends a client's open task without an update: the task with this id, or with any_task any task
  /// that it has. While a round is closing its tasks stay as they are, so this waits.
  Awaitable<void> lose_task(std::string client, TaskId id, std::string reason);
  /// Ends a task that its client can't do, as lose_task() does. Once all clients fail for one
  /// reason (Roster::common_failure()) the run ends.
  Awaitable<void> fail_task(std::string client, TaskId id, std::string reason);
  /// The deadline of a synchronous round has passed: notes a miss for each client whose update has
  /// not come. Where late updates count, a slow client does no harm, and gets no miss.
  void note_misses();
  /// Ends the tasks of clients that have not answered in time, which gives their places to others.
  /// Returns false if there were none.
  Awaitable<Result<bool>> drop_overdue();
  /// Ends the open tasks of clients that were expelled while their tasks were being made durable,
  /// or verified.
  void end_tasks_of_expelled();

 private:
  void note_failure(const std::string& client, const std::string& reason);
  /// Notes that a client's task has failed, or its time is over. After a few in a row the client is
  /// not asked for a while.
  void note_miss(Task& task);
  Parts parts_;
};

}  // namespace fl::server
