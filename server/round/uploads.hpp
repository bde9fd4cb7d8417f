// SPDX-License-Identifier: Apache-2.0
// Takes updates in: decides whether an upload may begin, checks it, makes it durable, and decides
// whether it counts. On the engine's strand; sessions write the chunks themselves, on theirs.
#pragma once

#include "server/host/upload_grant.hpp"
#include "server/round/bulk_budget.hpp"
#include "server/round/evaluations.hpp"
#include "server/round/norm_limit.hpp"
#include "server/round/round_sums.hpp"
#include "server/round/run_end.hpp"
#include "server/round/verdict_log.hpp"

#include <memory>
#include <string>

namespace fl {

class Uploads {
 public:
  struct Parts {
    RunControl& control;
    StoreThread& store;
    Offload& compute;
    const RunPlan& plan;
    Spool& spool;
    DeltaReferences& references;
    Roster& roster;
    Tasks& tasks;
    RoundSums& sums;
    VerdictLog& verdicts;
    Evaluations& evaluations;
    const RunEnd& end;
    PastRounds& past;
    TaskGroup& group;
    const BulkBudget& bulk;
  };
  explicit Uploads(const Parts& parts) : parts_(parts) {}

  /// Answers a client that announces an update.
  Awaitable<UploadGrant> begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  /// Handles a complete upload: checks it, makes it durable, adds it up, decides. May take until
  /// the round closes, as an update may have to wait for its judgement; its session reads nothing
  /// else then.
  Awaitable<wire::Verdict> finish(std::shared_ptr<Peer> peer, UploadGrant grant);
  /// Opens the spool's file for an announced update; the caller has checked `begin`. When the file
  /// can't be opened the grant's verdict says LATER.
  Awaitable<UploadGrant> open(wire::UploadBegin begin);

  /// Ends a task with a final state, and returns when that is durable. The caller holds a
  /// VerifyingGuard of the task: until then nothing else decides on it, and its round can't close.
  Awaitable<Result<void>> settle(Task& task, TaskRecord record);
  static constexpr TaskId any_task = TaskId::none;  // Real ids are above it.
  /// Ends a client's open task without an update: the task with this id, or with any_task any task
  /// that it has. While a round is closing its tasks stay as they are, so this waits.
  Awaitable<void> lose_task(std::string client, TaskId id, std::string reason);
  /// Notes that a client's task has failed, or its time is over. After a few in a row the client is
  /// not asked for a while.
  void note_miss(const Task& task);
  /// Writes what the client's program says about an update that counts (UploadBegin.notes) as
  /// events.
  void report_notes(const std::string& client, const wire::UploadBegin& begin);
  /// Ends the open tasks of clients that were expelled while their tasks were being made durable,
  /// or verified.
  void end_tasks_of_expelled();

 private:
  Awaitable<Task*> await_open_task(const std::string& client, TaskId id);
  Awaitable<wire::Verdict> verdict_of_earlier(const std::string& client,
                                              const wire::UploadBegin& begin);
  [[nodiscard]] Result<void> check(const wire::UploadBegin& begin, const Task& task) const;
  [[nodiscard]] Result<void> check_figures(const wire::UploadBegin& begin) const;
  wire::Verdict::Outcome reject(const Task& task, const UploadGrant& grant, const Error& error,
                                TaskRecord& record);
  [[nodiscard]] double least_pace(std::uint64_t bytes) const;
  Awaitable<Result<void>> add(Task& task, TaskRecord& record, const UploadGrant& grant);
  Awaitable<Result<void>> await_judgement(Task& task, double norm);
  [[nodiscard]] static JudgedNorm judge(OpenRound& round, double norm);
  RoundNorms& norms_of(OpenRound& round);
  void note_figures(TaskRecord& record, const Task& task, const UploadGrant& grant,
                    TimePoint arrived_at) const;
  Awaitable<void> record_holdout(std::shared_ptr<Peer> peer, const wire::UploadBegin& begin);

  Parts parts_;
};

}  // namespace fl
