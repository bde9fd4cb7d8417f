// SPDX-License-Identifier: Apache-2.0
// How good the versions are: asks evaluators (and trainers with held-out data, at the end) for
// every version, records what they answer, and says whether the run has reached its goal early. On
// the engine's strand.
#pragma once

#include "server/round/judgement.hpp"
#include "server/round/roster.hpp"
#include "server/round/run_control.hpp"
#include "server/run/run_plan.hpp"
#include "server/run/target.hpp"
#include "server/versions/versions.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// An evaluator that has left still counts for the run's end until others have answered for this
/// many later versions.
inline constexpr Version evaluator_remembered = 20;

class Evaluations {
 public:
  struct Parts {
    RunControl& control;
    const Roster& roster;
    const Versions& versions;
  };
  explicit Evaluations(const Parts& parts)
      : parts_(parts), target_(target_of(parts.control.plan.settings)) {}

  /// Reads what is recorded, at a start. Returns the evaluators' names.
  Awaitable<Result<std::vector<std::string>>> restore();

  // Asking ----------------------------------------------------------------------------------------

  /// Asks for the new version. `is_last`: the run is over, and trainers measure it on their
  /// held-out data too.
  void ask_all(bool is_last);
  /// A client has come: an evaluator is asked for the newest version, and with `is_last` a trainer
  /// whose last evaluation is still missing, too.
  void welcome(Peer& peer, bool is_last);
  /// Whether the client has yet to answer for the newest version, and can.
  [[nodiscard]] bool owes_last(const Peer& peer) const;
  /// The oldest version that an evaluator which is here, or was a moment ago, may still ask for,
  /// when version `made` was just made. An evaluator that is too slow for the rounds is not waited
  /// for (limits::evaluations_behind_*).
  [[nodiscard]] Version oldest_awaited(Version made) const;
  /// Returns when nobody here owes an evaluation of the last version, or none has come for
  /// limits::last_evaluations_max.
  Awaitable<void> await_last();

  // Answers ---------------------------------------------------------------------------------------

  /// Records an answer. An invalid answer is reported and ignored.
  Awaitable<void> record(std::shared_ptr<Peer> peer, wire::Evaluation evaluation);
  /// A client has answered for a version, or can't.
  void note_answered(Peer& peer, Version version);

  /// Forgets a revoked member: its answers and declared metrics count no more.
  void forget(const std::string& client);
  /// Checks whether what a client declares is right and fits the run's target. The Error's text is
  /// for the client's user.
  [[nodiscard]] Result<void> check_metrics_of(const Peer::Facts& facts) const;
  /// The run's main metric: the one that the settings name, or else the one that most evaluators
  /// declare first.
  [[nodiscard]] std::string main_metric() const;
  /// The evaluators' figures for the newest version that they have answered for, with the loss.
  /// Empty if most of them say that the version has diverged.
  [[nodiscard]] std::vector<MetricFigure> newest_figures() const;
  /// Why the run ends before its last round: its target, or --patience. Empty: it goes on.
  [[nodiscard]] std::string early_end() const;
  /// An operator has ended the run, durably, or it can't go on: from here on early_end() is `why`.
  void take_end(std::string why);
  /// Whether early_end() is certain, whatever evaluators answer.
  [[nodiscard]] bool has_end() const { return !kept_end_.empty(); }
  /// Makes this end durable. From here on early_end() is `why`, whatever evaluators answer.
  Awaitable<Result<void>> keep_end(std::string why);

 private:
  void ask(Peer& peer, const ModelVersion& version);
  void ask_to_catch_up(Peer& peer);
  void warn_of_missing(const Peer::Facts& facts);
  [[nodiscard]] Result<EvaluationRecord> record_of(const Peer::Facts& facts,
                                                   const wire::Evaluation& evaluation) const;
  void warn_of_kinds(const Peer::Facts& facts);
  [[nodiscard]] std::vector<MetricKind> wanted_kinds() const;
  [[nodiscard]] bool judges_by(const std::vector<MetricKind>& kinds) const;
  Awaitable<Result<void>> judge_all();
  [[nodiscard]] bool counts(const EvaluationRecord& answer) const;
  void judge(const EvaluationRecord& answer);
  void log_answer(const EvaluationRecord& answer) const;
  [[nodiscard]] Voters voters_of(const Judgement& judgement) const;
  [[nodiscard]] const Judgement* judgement_of(const std::string& metric) const;
  [[nodiscard]] std::string end_by_target() const;
  [[nodiscard]] std::string end_by_patience() const;

  Parts parts_;
  const std::optional<Target> target_;
  std::map<std::string, Version>
      next_;  // By client: the version after the newest that it answered for.
  std::map<std::string, Version>
      unasked_;  // By evaluator: the version after the newest that it was asked for.
  std::vector<DeclaredMetric> declared_;  // The rows of Measurements::declared().
  std::vector<Judgement>
      judgements_;  // By wanted_kinds(): the main metric's, and the target's if it differs.
  std::vector<EvaluationRecord> newest_;  // Evaluators' answers for the newest judged version.
  std::string kept_end_;
};

}  // namespace fl::server
