// SPDX-License-Identifier: Apache-2.0
// The state of a run, for the dashboard, the status line and the service manager. It changes
// nothing. On the engine's strand.
#pragma once

#include "server/round/evaluations.hpp"
#include "server/round/newcomers.hpp"
#include "server/round/past_rounds.hpp"
#include "server/round/roster.hpp"
#include "server/round/run_control.hpp"
#include "server/round/status.hpp"
#include "server/round/tasks.hpp"
#include "server/round/transfers.hpp"
#include "server/round/verdict_log.hpp"

#include <string>
#include <vector>

namespace fl::server {

class RunView {
 public:
  struct Parts {
    const RunControl& control;
    const Versions& versions;
    const Roster& roster;
    const Newcomers& newcomers;
    const Tasks& tasks;
    const PastRounds& past;
    const Evaluations& evaluations;
    const VerdictLog& verdicts;
    const Transfers& transfers;
  };
  explicit RunView(const Parts& parts) : parts_(parts) {}

  [[nodiscard]] EngineStatus status() const;
  /// The dashboard's first page, with at most limits::admin_transfers_max of the transfers
  /// under way.
  [[nodiscard]] LiveStatus live_status() const;
  /// The clients with these names and their work, in the same order.
  [[nodiscard]] std::vector<MemberStatus> members(const std::vector<std::string>& names) const;
  /// The members that are here, in the run or not.
  [[nodiscard]] std::vector<ClientHere> present() const;
  /// Why the run can't begin though clients come: those that can't take part, and their reasons. ""
  /// if it has a model or enough trainers, or nobody was turned away.
  [[nodiscard]] std::string why_unfit() const;
  /// The main loop's phase, in words.
  [[nodiscard]] std::string phase_text() const;

 private:
  [[nodiscard]] QueueLengths queues() const;
  [[nodiscard]] const Task* task_of(const std::string& client) const;
  [[nodiscard]] Activity activity_of(const std::string& client, const Peer* peer,
                                     const Task* task) const;
  [[nodiscard]] MemberStatus member(const std::string& name) const;

  Parts parts_;
};

}  // namespace fl::server
