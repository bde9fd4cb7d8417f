// SPDX-License-Identifier: Apache-2.0
// How good the versions are, by what the run's evaluators have measured. It depends on their
// answers and not on the order in which they came, so a restart comes to the same judgement.
// Plain objects without threads; on the engine's strand.
#pragma once

#include "server/history/records.hpp"
#include "shared/params/metric.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl {

/// Compares the versions by one metric ("loss" is one too) that evaluators measure. The values of
/// all evaluators that have answered for a version make one, each with its weight.
class Judgement {
 public:
  explicit Judgement(MetricKind kind) : kind_(std::move(kind)) {}
  [[nodiscard]] const MetricKind& kind() const { return kind_; }

  /// A client's second answer for a version replaces its first. An answer without this metric does
  /// not count, unless its loss is not finite.
  void note(const EvaluationRecord& answer);

  /// Nobody has measured anything.
  [[nodiscard]] bool empty() const { return versions_.empty(); }
  /// These three are not for an empty judgement. The best version is the first of equal ones, and
  /// the first of all if none has a value.
  [[nodiscard]] Version newest() const { return versions_.rbegin()->first; }
  [[nodiscard]] Version best() const { return best_; }
  /// Whether an evaluator's loss of the newest version was not finite: the model has diverged.
  [[nodiscard]] bool has_diverged() const;
  /// Nothing if the version has diverged, or the metric is not defined on anybody's data.
  [[nodiscard]] std::optional<double> value_of(Version version) const;

 private:
  struct OfClient {
    std::string client;
    bool is_finite = true;  // Its loss.
    Weighted weighted;
  };
  using OfVersion = std::vector<OfClient>;

  /// Higher is better; -infinity: there is no value.
  [[nodiscard]] double score_of(Version version) const;
  void find_best();

  MetricKind kind_;
  std::map<Version, OfVersion> versions_;
  Version best_ = 0;
  double best_score_ = 0;
};

/// Its loss as a metric, with its predictions as the weight.
[[nodiscard]] MetricValue loss_of(const EvaluationRecord& answer);
/// How much a value of this evaluation counts beside those of other clients.
[[nodiscard]] Weighted weighted_of(const MetricValue& value, std::uint64_t examples);

}  // namespace fl
