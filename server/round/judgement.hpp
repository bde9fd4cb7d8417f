// SPDX-License-Identifier: Apache-2.0
// How good the versions are, by what the run's evaluators have measured. It depends on their
// answers and not on the order in which they came, so a restart comes to the same judgement.
// Plain objects without threads; on the engine's strand.
#pragma once

#include "server/history/counted_claims.hpp"
#include "server/history/records.hpp"
#include "shared/params/metric.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

/// The names of the evaluators whose answers count. claims_to_judge_min of them or more decide by
/// majority, so that no single one does.
using Voters = std::set<std::string>;

/// Compares the versions by one metric ("loss" is one too) that evaluators measure.
///
/// With three voters or more each judges by its own figures, and what more than half of them say
/// counts: so a version's value is the median, the worse one of the middle two, where a voter
/// without a value stands last. With one or two, the values of all evaluators that have answered
/// for a version make one, each with its weight (counted_claims.hpp).
class Judgement {
 public:
  explicit Judgement(MetricKind kind) : kind_(std::move(kind)) {}
  [[nodiscard]] const MetricKind& kind() const { return kind_; }

  /// Whether a judgement by this kind would have the same result.
  [[nodiscard]] bool judges_by(const MetricKind& kind) const;

  /// Notes an answer. A client's second answer for a version replaces its first. An answer without
  /// this metric does not count, unless its loss is not finite: then it says only that the model
  /// has diverged, and only if the client is a voter.
  void note(const EvaluationRecord& answer);
  /// Forgets all answers of the client.
  void forget(const std::string& client);

  /// True if nobody has measured anything.
  [[nodiscard]] bool empty() const { return versions_.empty(); }
  /// Whether the client has measured the metric.
  [[nodiscard]] bool knows(const std::string& client) const;
  /// The newest version that somebody has answered for; with three voters or more, that more than
  /// half have answered for.
  [[nodiscard]] std::optional<Version> newest(const Voters& voters) const;
  /// The version's value; none if it has diverged, or too few have a value of it.
  [[nodiscard]] std::optional<double> value_of(Version version, const Voters& voters) const;
  /// The best version: the first of equal ones, and the first of all if none has a value. With
  /// three voters or more each has its own best one, and the middle one of these counts. Not for an
  /// empty judgement.
  [[nodiscard]] Version best(const Voters& voters) const;
  /// Whether the last `patience` versions were no better than the best one before them. Three
  /// voters or more count each for itself, and more than half must say so.
  [[nodiscard]] bool is_stuck(std::uint32_t patience, const Voters& voters) const;
  /// Whether most of the voters' losses of the newest version are not finite: the model has
  /// diverged.
  [[nodiscard]] bool has_diverged(const Voters& voters) const;

 private:
  struct OfClient {
    std::string client;
    bool is_finite = true;   // Whether the client's loss is finite.
    bool has_metric = true;  // False: the loss is not finite, and the claim is that loss.
    Claim claim;
  };
  struct OfVersion {
    std::vector<OfClient> clients;
    double score = 0;  // By the mean, as in by_mean_.
  };
  /// The best versions by one client's own figures.
  struct Own {
    int measured = 0;  // The number of versions whose metric the client has measured.
    Version newest = 0;
    Version best = 0;
    double best_score = 0;
  };

  /// Higher is better; -infinity: there is no value.
  [[nodiscard]] double score(std::optional<double> value) const;
  [[nodiscard]] double own_score(const OfClient& of) const;
  [[nodiscard]] std::optional<double> mean_of(const OfVersion& version) const;
  [[nodiscard]] std::optional<double> middle_of(const OfVersion& version,
                                                const Voters& voters) const;
  void note_mean(Version version);
  void note_own(const std::string& client, Version version);

  MetricKind kind_;
  std::map<Version, OfVersion> versions_;
  /// The negative score by the evaluators' mean, with the version: so the best version is the
  /// first.
  std::set<std::pair<double, Version>> by_mean_;
  std::map<std::string, Own> own_;
};

/// Returns the answer's loss as a metric, weighted by its predictions.
[[nodiscard]] MetricValue loss_of(const EvaluationRecord& answer);

}  // namespace fl::server
