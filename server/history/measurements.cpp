// SPDX-License-Identifier: Apache-2.0
#include "server/history/measurements.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

/// A client's second declaration of a metric replaces its first, and keeps its place.
Result<void> put_kind(Database& db, const EvaluationRecord& of, const MetricKind& kind) {
  FL_CHECK(
      db.run("INSERT INTO metric_declaration (run_id, client, name, lower_is_better, combine,"
             " evaluator) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
             " ON CONFLICT (run_id, client, name) DO UPDATE SET"
             " lower_is_better = excluded.lower_is_better, combine = excluded.combine,"
             " evaluator = excluded.evaluator",
             of.run, of.client, kind.name, kind.lower_is_better ? 1 : 0, to_text(kind.combine),
             of.evaluator ? 1 : 0));
  return {};
}

}  // namespace

Result<void> Measurements::add(const EvaluationRecord& evaluation) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    const auto put = [&](const std::string& name, double value, double weight) {
      return db_.run(
          "INSERT INTO metric (run_id, version, client, name, value, weight, examples, evaluator,"
          " at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
          evaluation.run, evaluation.version, evaluation.client, name, value, weight,
          evaluation.examples, evaluation.evaluator ? 1 : 0, now);
    };
    const auto put_all = [&](const std::string& prefix, double loss,
                             const std::vector<MetricValue>& metrics) -> Result<void> {
      FL_CHECK(put(prefix + std::string(loss_name), loss, evaluation.predictions));
      for (const MetricValue& metric : metrics)
        FL_CHECK(put(prefix + metric.name, metric.value, metric.weight));
      return {};
    };
    FL_CHECK(db_.run("DELETE FROM metric WHERE run_id = ?1 AND version = ?2 AND client = ?3",
                     evaluation.run, evaluation.version, evaluation.client));
    FL_CHECK(put_all("", evaluation.loss, evaluation.metrics));
    if (evaluation.own)
      FL_CHECK(put_all(std::string(own_prefix), evaluation.own->loss, evaluation.own->metrics));
    for (const MetricKind& kind : evaluation.kinds) FL_CHECK(put_kind(db_, evaluation, kind));
    // The main metric of an evaluator without others is the loss.
    if (evaluation.evaluator && evaluation.kinds.empty())
      FL_CHECK(put_kind(db_, evaluation, known_metric(loss_name)));
    return {};
  });
}

Result<std::map<std::string, Measurements::NewestEvaluation>> Measurements::newest(RunId run) {
  std::map<std::string, NewestEvaluation> newest;
  const auto note = [&](const Row& row) {
    return newest
        .emplace(row.text(0), NewestEvaluation{.version = static_cast<Version>(row.integer(1)),
                                               .is_evaluator = row.integer(2) != 0})
        .second;
  };
  FL_CHECK(
      db_.query("SELECT client, max(version), max(evaluator) FROM metric WHERE run_id = ?1"
                " AND client NOT IN (SELECT name FROM client WHERE revoked_at IS NOT NULL)"
                " GROUP BY client",
                note, run));
  return newest;
}

Result<std::vector<EvaluationRecord>> Measurements::evaluator_answers(RunId run,
                                                                      std::uint64_t examples_min) {
  std::vector<EvaluationRecord> answers;
  const auto note = [&](const Row& row) {
    const auto version = static_cast<Version>(row.integer(0));
    const std::string client = row.text(1);
    if (answers.empty() || answers.back().version != version || answers.back().client != client) {
      EvaluationRecord& answer = answers.emplace_back();
      answer.run = run;
      answer.version = version;
      answer.client = client;
      answer.evaluator = true;
      answer.examples = static_cast<std::uint64_t>(row.integer(2));
    }
    if (row.text(3) == loss_name) {
      answers.back().loss = row.real(4);
      answers.back().predictions = row.real(5);
    } else {
      answers.back().metrics.push_back({row.text(3), row.real(4), row.real(5)});
    }
    return true;
  };
  FL_CHECK(
      db_.query("SELECT version, client, examples, name, value, weight FROM metric"
                " WHERE run_id = ?1 AND evaluator = 1 AND examples >= ?2"
                " AND client NOT IN (SELECT name FROM client WHERE revoked_at IS NOT NULL)"
                " AND name NOT LIKE 'own!_%' ESCAPE '!' ORDER BY version, client, name",
                note, run, examples_min));
  return answers;
}

Result<std::vector<DeclaredMetric>> Measurements::declared(RunId run) {
  const auto read = [](const Row& row) -> Result<DeclaredMetric> {
    const auto how = combine_of(row.text(2));
    if (!how) return Error(Errc::corrupt, fmt::format("metric_kind: combine '{}'", row.text(2)));
    return DeclaredMetric{{row.text(0), row.integer(1) != 0, *how}, row.integer(3) != 0};
  };
  return db_.query(
      "SELECT k.name, k.lower_is_better, k.combine, k.evaluator FROM metric_kind AS k"
      " LEFT JOIN first_metric AS f ON f.run_id = k.run_id AND f.name = k.name"
      " WHERE k.run_id = ?1 ORDER BY f.name IS NULL, k.evaluator DESC, k.id",
      read, run);
}

Result<MeasuredVersions> Measurements::measured(RunId run, const std::string& metric, Of which) {
  MeasuredVersions found;
  // A run without evaluators is known by its declarations: its figures are not searched for one.
  FL_TRY(const auto by_evaluators,
         db_.find(
             "SELECT EXISTS (SELECT 1 FROM metric_declaration WHERE run_id = ?1 AND evaluator = 1)"
             " AND EXISTS (SELECT 1 FROM metric WHERE run_id = ?1 AND name = ?2 AND evaluator = 1"
             " AND value IS NOT NULL)",
             [](const Row& row) { return row.integer(0) != 0; }, run, metric));
  found.by_evaluators = by_evaluators.value_or(false);
  const auto note = [&found](const Row& row) {
    const auto version = static_cast<Version>(row.integer(0));
    if (found.versions.empty() || found.versions.back().version != version)
      found.versions.push_back({version, row.integer(1) != 0, {}});
    found.versions.back().claims.push_back({row.real(2), row.real(3), row.real(4)});
    return true;
  };
  // CROSS JOIN keeps this order of the loops: it reads the figures of the wanted versions only.
  FL_CHECK(
      db_.query("SELECT m.version, c.dropped_at IS NULL, m.value, m.weight, m.examples"
                " FROM checkpoint AS c CROSS JOIN metric AS m"
                " ON m.run_id = c.run_id AND m.version = c.version"
                " WHERE c.run_id = ?1 AND (?4 = 0 OR c.dropped_at IS NULL)"
                " AND m.name = ?2 AND m.evaluator = ?3 AND m.value IS NOT NULL"
                " ORDER BY c.version, m.client",
                note, run, metric, found.by_evaluators ? 1 : 0, which == Of::kept ? 1 : 0));
  return found;
}

Result<std::string> Measurements::main_metric(RunId run) {
  FL_TRY(const auto name, db_.find(
                              "SELECT name FROM run_metric WHERE run_id = ?1",
                              [](const Row& row) { return row.text(0); }, run));
  if (!name) return Error(Errc::not_found, fmt::format("there is no run {}", run));
  return *name;
}

}  // namespace fl::server
