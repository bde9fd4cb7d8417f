// SPDX-License-Identifier: Apache-2.0
// The conversation about an update: what a client is answered when it announces one, and when all
// of it is here. UpdateIntake says what an update must fit and adds it; TaskDecisions makes the
// verdict durable. On the engine's strand; sessions write the chunks themselves, on theirs.
#pragma once

#include "server/host/upload_grant.hpp"
#include "server/round/bulk_budget.hpp"
#include "server/round/evaluations.hpp"
#include "server/round/task_decisions.hpp"
#include "server/round/update_intake.hpp"
#include "server/round/upload_files.hpp"

#include <memory>
#include <string>

namespace fl::server {

class Uploads {
 public:
  struct Parts {
    RunControl& control;
    Tasks& tasks;
    TaskDecisions& decisions;
    UploadFiles& files;
    UpdateIntake& intake;
    Evaluations& evaluations;
    const PastRounds& past;
    const BulkBudget& bulk;
  };
  explicit Uploads(const Parts& parts) : parts_(parts) {}

  /// Answers a client that announces an update.
  Awaitable<UploadGrant> begin(std::shared_ptr<Peer> peer, wire::UploadBegin begin);
  /// Handles a complete upload: checks it, makes it durable, adds it up, decides. May take until
  /// the round closes, as an update may have to wait for its judgement; its session reads nothing
  /// else then.
  Awaitable<wire::Verdict> finish(std::shared_ptr<Peer> peer, UploadGrant grant);

 private:
  Awaitable<UploadGrant> open(wire::UploadBegin begin);
  [[nodiscard]] Result<void> check(const wire::UploadBegin& begin, const Task& task) const;
  [[nodiscard]] double least_pace(std::uint64_t bytes) const;
  wire::Verdict::Outcome reject(const Task& task, const UploadGrant& grant, const Error& error,
                                TaskRecord& record);
  void report_notes(const std::string& client, const wire::UploadBegin& begin);
  Awaitable<void> record_holdout(std::shared_ptr<Peer> peer, const wire::UploadBegin& begin);

  Parts parts_;
};

}  // namespace fl::server
