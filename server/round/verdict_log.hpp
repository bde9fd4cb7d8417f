// SPDX-License-Identifier: Apache-2.0
// Makes verdicts durable, in groups: one transaction for all that came while the last one was
// written. On the engine's strand.
#pragma once

#include "server/round/run_control.hpp"
#include "server/round/spool.hpp"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace fl::server {

class VerdictLog {
 public:
  VerdictLog(RunControl& control, Spool& spool)
      : control_(control), spool_(spool), changed_(control.strand()) {}

  /// Returns when the tasks' final states, and the names of their spooled files, are durable: all
  /// in one transaction. Errors: Rounds::decide; unavailable after the end of the run.
  Awaitable<Result<void>> commit_verdicts(std::vector<TaskRecord> records);
  /// Commits the waiting verdicts, until close(). The engine runs it beside its main loop.
  Awaitable<void> commit_all();
  void close();
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  /// Verdicts on their way to the disk.
  struct Decision {
    std::vector<TaskRecord> records;
    std::optional<Result<void>> outcome;
  };

  RunControl& control_;
  Spool& spool_;
  std::deque<std::shared_ptr<Decision>> waiting_;
  bool is_closed_ = false;
  Signal changed_;  // Notified when waiting_ grew, or a verdict has its outcome.
};

}  // namespace fl::server
