// SPDX-License-Identifier: Apache-2.0
// The evaluations of a run's versions by clients, and the metrics that clients declare. Threads,
// transactions and errors are as store.hpp says.
#pragma once

#include "server/history/best_version.hpp"
#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fl::server {

class Database;

class Measurements {
 public:
  explicit Measurements(Database& db) : db_(db) {}

  /// A client's second evaluation of one version replaces the first.
  [[nodiscard]] Result<void> add(const EvaluationRecord& evaluation);
  struct NewestEvaluation {
    Version version = 0;
    bool is_evaluator = false;
  };
  /// The newest version that each client of the run has evaluated, by the client's name, without
  /// members that were revoked.
  [[nodiscard]] Result<std::map<std::string, NewestEvaluation>> newest(RunId run);
  /// The answers of the run's evaluators on so many examples or more, by version and name, without
  /// those of members that were revoked. Without `own` and `kinds`.
  [[nodiscard]] Result<std::vector<EvaluationRecord>> evaluator_answers(RunId run,
                                                                        std::uint64_t examples_min);
  /// The metrics of the run's evaluations so far, each as most evaluators declare it, or most
  /// trainers where no evaluator does: the one that most declare as their first, then those of
  /// evaluators, and each group in the order in which they were declared. "loss" is one of them if
  /// an evaluator has no other. What revoked members declare counts where nobody else does.
  [[nodiscard]] Result<std::vector<DeclaredMetric>> declared(RunId run);
  /// The measurements of a run by one metric that count: of all its versions, or of the kept ones
  /// alone, which costs no more in a long run than in a short one.
  enum class Of { all, kept };
  [[nodiscard]] Result<MeasuredVersions> measured(RunId run, const std::string& metric, Of which);
  /// The name of the run's main metric. Errors: not_found.
  [[nodiscard]] Result<std::string> main_metric(RunId run);

 private:
  Database& db_;
};

}  // namespace fl::server
