// SPDX-License-Identifier: Apache-2.0
// The members whose words count in an attempt of a masked round, from the moment on that a list of
// them may be signed: their tasks are held until the sum is open, and who of them leaves or lies is
// reported once. On the engine's strand.
#pragma once

#include "server/round/roster.hpp"
#include "server/round/run_control.hpp"
#include "server/round/tasks.hpp"
#include "server/secure/attempt.hpp"

#include <list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

class MaskedSurvivors {
 public:
  MaskedSurvivors(RunControl& control, const Roster& roster, Tasks& tasks)
      : control_(control), roster_(roster), tasks_(tasks) {}

  /// From now on nothing else ends the tasks of these clients, as far as they are open. Requires:
  /// none are held.
  void hold(const std::vector<std::string>& names);
  [[nodiscard]] bool are_held() const { return !held_.empty(); }
  /// The sum is open, or given up.
  void release() { held_.clear(); }
  /// Another attempt begins.
  void reset();

  /// A survivor says that it neither signs nor opens.
  void note_leaving(const std::string& client, std::string_view why);
  /// These have revealed wrong shares.
  void note_liars(const std::vector<std::string>& names);
  /// Whether those that have neither left nor been revoked can sign the list and open the sum.
  [[nodiscard]] bool can_open(const Attempt& attempt) const;

 private:
  RunControl& control_;
  const Roster& roster_;
  Tasks& tasks_;
  std::list<DecidingGuard> held_;
  std::set<std::string> left_;
  std::set<std::string> liars_;
};

}  // namespace fl::server
