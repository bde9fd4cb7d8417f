// SPDX-License-Identifier: Apache-2.0
// How good the versions are: asks evaluators (and trainers with held-out data, at the end) for
// every version, records what they answer, and says whether the run has reached its goal early. On
// the engine's strand.
#pragma once

#include "server/round/roster.hpp"
#include "server/round/run_control.hpp"
#include "server/run/run_plan.hpp"
#include "server/versions/versions.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace fl {

class Evaluations {
 public:
  struct Parts {
    RunControl& control;
    StoreThread& store;
    const RunPlan& plan;
    const Roster& roster;
    const Versions& versions;
  };
  explicit Evaluations(const Parts& parts) : parts_(parts) {}

  /// Reads what is recorded, at a start. Returns the evaluators' names.
  Awaitable<Result<std::vector<std::string>>> restore();

  // Asking ----------------------------------------------------------------------------------------

  /// There is a new version. `is_last`: the run is over, and trainers measure it on their held-out
  /// data too.
  void ask_all(bool is_last);
  /// A client has come: an evaluator is asked for the newest version, and a trainer whose last
  /// evaluation is still owed (`is_last`) for that.
  void welcome(Peer& peer, bool is_last);
  /// Whether it has yet to answer for the newest version, and can.
  [[nodiscard]] bool owes_last(const Peer& peer) const;
  /// From which version on an evaluator that is here, or was a moment ago, may still ask for one,
  /// when version `made` was just made. An evaluator that is too slow for the rounds is not waited
  /// for (limits::evaluations_behind_*).
  [[nodiscard]] Version oldest_awaited(Version made) const;
  /// Returns when nobody here owes an evaluation of the last version, or none has come for
  /// limits::last_evaluations_max.
  Awaitable<void> await_last();

  // Answers ---------------------------------------------------------------------------------------

  /// Records an answer. One that can't be right is reported and ignored.
  Awaitable<void> record(std::shared_ptr<Peer> peer, wire::Evaluation evaluation);
  /// A client has answered for a version, or can't.
  void note_answered(Peer& peer, Version version);

  /// What an evaluator has measured of the newest version; none if its loss was not finite.
  [[nodiscard]] std::optional<double> accuracy() const { return accuracy_; }
  /// Why the run ends before its last round: the target accuracy, or --patience. Empty: it does
  /// not.
  [[nodiscard]] std::string early_end() const;

 private:
  void ask(Peer& peer, const ModelVersion& version);
  void ask_to_catch_up(Peer& peer);
  void note_accuracy(Version version, double accuracy);

  Parts parts_;
  std::map<std::string, Version> next_;  // By client: the version after the newest it answered for.
  std::map<std::string, Version> unasked_;  // By evaluator: the version after the newest asked for.
  bool is_judged_ = false;                  // By an evaluator.
  Version judged_version_ = 0;              // The newest one.
  std::optional<double> accuracy_;
  double best_accuracy_ = -1;  // Below 0: no version had a finite loss.
  Version best_version_ = 0;
};

}  // namespace fl
