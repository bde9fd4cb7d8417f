// SPDX-License-Identifier: Apache-2.0
#include "tests/world/check_evaluations.hpp"

#include "server/run/target.hpp"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace fl::test {

using namespace fl::server;

namespace {

Error unexpected(std::string what) { return {Errc::internal, std::move(what)}; }

struct MetricRow {
  Version version = 0;
  std::string client;
  std::string name;
  double value = 0;
  double weight = 0;
  double examples = 0;
  bool evaluator = false;
};

std::string text_of_column(sqlite3_stmt* statement, int column) {
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return text == nullptr ? "" : text;
}

template <class Note>
Result<void> each_row(Store& store, const char* sql, Note note) {
  sqlite3_stmt* raw = nullptr;
  if (sqlite3_prepare_v2(store.raw(), sql, -1, &raw, nullptr) != SQLITE_OK)
    return unexpected(sqlite3_errmsg(store.raw()));
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement(raw, sqlite3_finalize);
  while (sqlite3_step(raw) == SQLITE_ROW) note(raw);
  return {};
}

class Evaluated {
 public:
  Evaluated(World& world, History& history, const std::vector<std::span<const float>>& models)
      : world_(world),
        history_(history),
        models_(models),
        settings_(world.options().settings),
        target_(target_of(settings_)) {}

  Result<void> run() {
    FL_CHECK(read());
    for (const MetricRow& row : rows_) FL_CHECK(check_row(row));
    FL_CHECK(check_view());
    return check_end();
  }

 private:
  Result<void> read() {
    const auto note = [&](sqlite3_stmt* s) {
      rows_.push_back({static_cast<Version>(sqlite3_column_int64(s, 0)), text_of_column(s, 1),
                       text_of_column(s, 2), sqlite3_column_double(s, 3),
                       sqlite3_column_double(s, 4), sqlite3_column_double(s, 5),
                       sqlite3_column_int(s, 6) != 0});
    };
    return each_row(*history_.store,
                    "SELECT version, client, name, value, weight, examples, evaluator FROM metric"
                    " WHERE value IS NOT NULL AND substr(name, 1, 4) <> 'own_'"
                    " ORDER BY version, client, name",
                    note);
  }

  /// A member reports what its toy problem says of the version.
  Result<void> check_row(const MetricRow& row) const {
    const auto found = world_.clients().find(row.client);
    if (found == world_.clients().end()) return {};  // A test plays it.
    const WorldOptions::Member& member = found->second.member;
    const auto point = world_.options().problem.point(member.part.client);
    const double loss = ToyTrainer::loss_at(models_[row.version], point);
    MetricValue expected{
        .name = "loss",
        .value = loss,
        .weight = member.part.predictions.value_or(0) * static_cast<double>(member.part.holdout)};
    if (row.name != loss_name) {
      const auto values = ToyTrainer::values_of(member.part, loss);
      const MetricValue* const of_name = find_metric(values, row.name);
      if (of_name == nullptr) return unexpected(fmt::format("{} has no {}", row.client, row.name));
      expected = *of_name;
    }
    if (row.value == expected.value && row.weight == expected.weight &&
        row.evaluator == member.evaluator &&
        row.examples == static_cast<double>(member.part.holdout))
      return {};
    return unexpected(fmt::format("version {}: {} of {} is {} (weight {}), expected {} (weight {})",
                                  row.version, row.name, row.client, row.value, row.weight,
                                  expected.value, expected.weight));
  }

  /// The evaluators' values of a version together, without some of them. No world has figures so
  /// unlike that the others' bound them (counted_claims.hpp).
  std::optional<double> together(Version version, const std::string& name,
                                 const std::set<std::string>& without = {}) const {
    double sum = 0;
    double weights = 0;
    for (const MetricRow& row : rows_) {
      if (row.version != version || row.name != name || !row.evaluator) continue;
      if (without.contains(row.client)) continue;
      const double weight = row.weight > 0 ? row.weight : row.examples;
      sum += weight * (name == "perplexity" ? std::log(row.value) : row.value);
      weights += weight;
    }
    if (weights == 0) return std::nullopt;
    return name == "perplexity" ? std::exp(sum / weights) : sum / weights;
  }

  /// Whether an evaluator of it has no finite loss.
  bool has_diverged(Version version) const {
    const auto has_loss = [&](const std::string& client) {
      return std::ranges::any_of(rows_, [&](const MetricRow& row) {
        return row.version == version && row.client == client && row.name == loss_name;
      });
    };
    return std::ranges::any_of(rows_, [&](const MetricRow& row) {
      return row.version == version && row.evaluator && !has_loss(row.client);
    });
  }

  std::set<std::string> evaluators() const {
    std::set<std::string> names;
    for (const MetricRow& row : rows_)
      if (row.evaluator) names.insert(row.client);
    return names;
  }

  /// All evaluators of a world measure the same metrics.
  std::string main_metric() const {
    if (!settings_.metric.empty()) return settings_.metric;
    if (target_) return target_->metric;
    const auto& clients = world_.clients();
    const auto one = clients.find(*evaluators().begin());
    return one->second.member.part.metrics.empty() ? "loss"
                                                   : one->second.member.part.metrics.front();
  }

  Result<void> check_view() const {
    if (evaluators().empty()) return {};
    Result<void> right;
    std::size_t seen = 0;
    const auto note = [&](sqlite3_stmt* s) {
      const auto version = static_cast<Version>(sqlite3_column_int64(s, 0));
      const std::string name = text_of_column(s, 1);
      const double value = sqlite3_column_double(s, 2);
      const auto expected = together(version, name);
      ++seen;
      if (!expected || std::fabs(*expected - value) > 1e-12 * std::fabs(value))
        right = unexpected(fmt::format("version {} has {} {} in the view evaluation, expected {}",
                                       version, name, value, expected.value_or(0)));
    };
    FL_CHECK(each_row(*history_.store,
                      "SELECT version, name, value FROM evaluation WHERE evaluator = 1", note));
    FL_CHECK(right);
    std::set<std::pair<Version, std::string>> measured;
    for (const MetricRow& row : rows_)
      if (row.evaluator) measured.emplace(row.version, row.name);
    if (seen != measured.size())
      return unexpected(
          fmt::format("the view evaluation has {} rows, not {}", seen, measured.size()));
    std::string main;
    FL_CHECK(each_row(*history_.store, "SELECT name FROM run_metric",
                      [&](sqlite3_stmt* s) { main = text_of_column(s, 0); }));
    if (main == main_metric()) return {};
    return unexpected(fmt::format("the main metric is {}, expected {}", main, main_metric()));
  }

  /// A run that ends early has a reason. Which of the evaluators had answered by then is not known.
  Result<void> check_end() const {
    const std::string& why = history_.run.early_end;
    if (why.empty()) return {};
    const Version last = static_cast<Version>(models_.size() - 1);
    for (Version version = 0; version <= last; ++version) {
      if (target_ && why.starts_with(fmt::format("version {} has {} ", version, target_->metric)))
        return check_target(version);
      if (settings_.patience > 0 &&
          why.starts_with(fmt::format("no version was better than version {}, with {} ", version,
                                      main_metric())))
        return check_patience(version, last);
    }
    return unexpected("the run ended early without a known reason: " + why);
  }

  Result<void> check_target(Version version) const {
    const std::set<std::string> all = evaluators();
    std::vector<std::set<std::string>> absent{{}};
    for (const auto& name : all) {
      auto more = absent;
      for (auto& group : more) group.insert(name);
      absent.insert(absent.end(), more.begin(), more.end());
    }
    for (const auto& without : absent) {
      const auto value = together(version, target_->metric, without);
      if (value && target_->is_met(*value)) return {};
    }
    return unexpected(fmt::format("version {} does not meet the target", version));
  }

  /// With one evaluator its answers came in order, so a later version of some time decided.
  Result<void> check_patience(Version best, Version last) const {
    if (last < best + settings_.patience)
      return unexpected(fmt::format("version {} is not {} rounds old", best, settings_.patience));
    if (evaluators().size() > 1) return {};
    const std::string name = main_metric();
    std::vector<MetricKind> kinds =
        ToyTrainer::kinds_of(world_.clients().at(*evaluators().begin()).member.part);
    const bool lower = judged_kind(name, target_, kinds).lower_is_better;
    const auto value = together(best, name);
    for (Version version = 0; version <= best + settings_.patience; ++version) {
      const auto other = together(version, name);
      if (!other || version == best || has_diverged(version)) continue;
      const double gain = lower ? *value - *other : *other - *value;
      if (gain > 0 || (gain == 0 && version < best))
        return unexpected(fmt::format("version {} is better than version {}", version, best));
    }
    return {};
  }

  World& world_;
  History& history_;
  const std::vector<std::span<const float>>& models_;
  const RunSettings& settings_;
  const std::optional<Target> target_;
  std::vector<MetricRow> rows_;
};

}  // namespace

Result<void> check_evaluations(World& world, History& history,
                               const std::vector<std::span<const float>>& models) {
  auto right = Evaluated(world, history, models).run();
  if (!right) return right.error().at("evaluations");
  return right;
}

}  // namespace fl::test
