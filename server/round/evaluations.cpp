// SPDX-License-Identifier: Apache-2.0
#include "server/round/evaluations.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/metric_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

namespace {

/// A loss that is not finite comes from a model that diverged: it is recorded without figures.
double finite_or_nan(double value) { return std::isfinite(value) ? value : std::nan(""); }

/// Checks that the client has declared each metric and reports it once.
Result<std::vector<MetricValue>> checked(std::vector<MetricValue> metrics,
                                         const std::vector<MetricKind>& kinds) {
  if (metrics.size() > kinds.size()) {
    return Error(Errc::invalid_input, fmt::format("it has {} metrics, and {} were declared",
                                                  metrics.size(), kinds.size()));
  }
  for (MetricValue& metric : metrics) {
    FL_CHECK(check_metric_value(metric, kinds));
    if (std::ranges::count(metrics, metric.name, &MetricValue::name) > 1)
      return Error(Errc::invalid_input, fmt::format("metric {} is there twice", metric.name));
    metric.value = finite_or_nan(metric.value);
  }
  return metrics;
}

/// Whether a trainer can measure a version when the server asks for it.
bool can_evaluate(const Peer::Facts& facts) {
  return facts.holdout_examples > 0 && facts.features.has(Feature::evaluation);
}

/// Whether the evaluation had no examples, or nothing to predict in them.
bool has_nothing(const wire::Evaluation& evaluation) {
  return evaluation.examples() == 0 ||
         (evaluation.has_predictions() && evaluation.predictions() == 0);
}

}  // namespace

Awaitable<Result<std::vector<std::string>>> Evaluations::restore() {
  kept_end_ = parts_.control.plan.run.early_end;
  auto list = [run = parts_.control.plan.run.id](Store& store) {
    return store.measurements().declared(run);
  };
  FL_CO_TRY(declared_, co_await parts_.control.store.with_store(std::move(list)));
  FL_CO_CHECK(co_await judge_all());
  auto find = [run = parts_.control.plan.run.id](Store& store) {
    return store.measurements().newest(run);
  };
  FL_CO_TRY(const auto newest, co_await parts_.control.store.with_store(std::move(find)));
  std::vector<std::string> evaluators;
  for (const auto& [name, evaluation] : newest) {
    next_[name] = evaluation.version + 1;
    if (!evaluation.is_evaluator) continue;
    unasked_[name] = 0;
    evaluators.push_back(name);
  }
  co_return evaluators;
}

void Evaluations::ask_all(bool is_last) {
  parts_.control.expect_strand();
  if (parts_.versions.empty()) return;
  for (const auto& peer : parts_.roster.here()) {
    if (peer->facts().evaluator) {
      ask_to_catch_up(*peer);
    } else if (is_last && can_evaluate(peer->facts())) {
      ask(*peer, *parts_.versions.newest());
    }
  }
}

void Evaluations::welcome(Peer& peer, bool is_last) {
  parts_.control.expect_strand();
  if (peer.facts().evaluator) {
    unasked_[peer.facts().name] = 0;
    warn_of_missing(peer.facts());
    warn_of_kinds(peer.facts());
    ask_to_catch_up(peer);
  } else if (is_last && owes_last(peer)) {
    ask(peer, *parts_.versions.newest());
  }
}

/// Asks for the versions in order, a few at a time. A new evaluator begins with the newest version.
/// Between the kept versions there may be some that are not kept.
void Evaluations::ask_to_catch_up(Peer& peer) {
  const auto& versions = parts_.versions.all();
  if (versions.empty()) return;
  const auto& name = peer.facts().name;
  const Version next = next_.try_emplace(name, versions.rbegin()->first).first->second;
  const auto oldest = versions.lower_bound(next);
  if (oldest == versions.end()) return;
  const Version first = oldest->first;
  Version& unasked = unasked_[name];
  for (auto at = versions.lower_bound(std::max(first, unasked));
       at != versions.end() && at->first < first + limits::evaluations_asked_max; ++at) {
    ask(peer, *at->second);
    unasked = at->first + 1;
  }
}

void Evaluations::ask(Peer& peer, const ModelVersion& version) {
  wire::Header header;
  header.mutable_evaluate()->set_version(version.record.version);
  header.mutable_evaluate()->set_version_digest(version.record.digest.raw());
  peer.post(std::move(header));
}

void Evaluations::note_answered(Peer& peer, Version version) {
  parts_.control.expect_strand();
  auto& next = next_[peer.facts().name];
  next = std::max(next, version + 1);
  if (peer.facts().evaluator) ask_to_catch_up(peer);
  parts_.control.changed.notify();
}

Version Evaluations::oldest_awaited(Version made) const {
  Version oldest = made;
  for (const auto& [name, unasked] : unasked_) {
    const auto next = next_.find(name);
    if (next != next_.end() && parts_.roster.is_awaited(name))
      oldest = std::min(oldest, next->second);
  }
  const Round limit =
      std::clamp(static_cast<Round>(std::min<std::uint64_t>(
                     limits::evaluations_behind_bytes / parts_.control.plan.layout.bytes(),
                     limits::evaluations_behind_max)),
                 limits::evaluations_behind_min, limits::evaluations_behind_max);
  return std::max(oldest, made > limit ? made - limit : 0);
}

Result<void> Evaluations::check_metrics_of(const Peer::Facts& facts) const {
  FL_CHECK(check_metrics(facts.metrics));
  return check_direction(facts.metrics, target_);
}

/// An evaluator whose metrics disagree with the others' is let in: the majority decides which kind
/// is right.
void Evaluations::warn_of_kinds(const Peer::Facts& facts) {
  for (const DeclaredMetric& declared : declared_) {
    const MetricKind& kind = declared.kind;
    const auto own = std::ranges::find(facts.metrics, kind.name, &MetricKind::name);
    if (!declared.by_evaluator || own == facts.metrics.end() || *own == kind) continue;
    parts_.control.report_of(
        facts.name, EventLevel::warning,
        fmt::format("{} has metric {} with {} values as the better ones, combined by '{}'; the "
                    "evaluators before it have {} and '{}': what most of them say counts",
                    facts.name, kind.name, own->lower_is_better ? "lower" : "higher",
                    to_text(own->combine), kind.lower_is_better ? "lower" : "higher",
                    to_text(kind.combine)));
  }
}

/// Warns of an evaluator that does not measure the metrics that the settings name.
void Evaluations::warn_of_missing(const Peer::Facts& facts) {
  const auto warn = [&](std::string_view flag, const std::string& name) {
    if (name.empty() || name == loss_name) return;
    if (std::ranges::find(facts.metrics, name, &MetricKind::name) != facts.metrics.end()) return;
    std::string measured(loss_name);
    for (const MetricKind& kind : facts.metrics) measured += ", " + kind.name;
    parts_.control.report_of(facts.name, EventLevel::warning,
                             fmt::format("{} does not measure {}, which {} names; it measures {}",
                                         facts.name, name, flag, measured));
  };
  warn("--metric", parts_.control.plan.settings.metric);
  if (target_) warn("--target", target_->metric);
}

Result<EvaluationRecord> Evaluations::record_of(const Peer::Facts& facts,
                                                const wire::Evaluation& evaluation) const {
  if (parts_.versions.empty() || evaluation.version() > parts_.versions.newest_number())
    return Error(Errc::invalid_input, "there is no such version");
  if (evaluation.examples() > facts.holdout_examples) {
    return Error(Errc::invalid_input, fmt::format("it has {} examples, and the client has {}",
                                                  evaluation.examples(), facts.holdout_examples));
  }
  EvaluationRecord record;
  record.run = parts_.control.plan.run.id;
  record.version = evaluation.version();
  record.client = facts.name;
  record.evaluator = facts.evaluator;
  record.examples = evaluation.examples();
  record.loss = finite_or_nan(evaluation.loss());
  record.predictions = evaluation.predictions();
  FL_CHECK(check_predictions(record.predictions));
  record.kinds = facts.metrics;
  FL_TRY(record.metrics, checked(read_metrics(evaluation.metrics()), facts.metrics));
  FL_TRY(auto own, checked(read_metrics(evaluation.own_metrics()), facts.metrics));
  const LocalRule* const rule = parts_.control.plan.strategy->local();
  if (rule != nullptr && rule->own_model() != nullptr && !facts.evaluator)
    record.own = EvaluationRecord::Own{finite_or_nan(evaluation.own_loss()), std::move(own)};
  return record;
}

Awaitable<void> Evaluations::record(std::shared_ptr<Peer> peer, wire::Evaluation evaluation) {
  parts_.control.expect_strand();
  const auto& facts = peer->facts();
  const auto record = record_of(facts, evaluation);
  if (!record) {
    parts_.control.report_of(
        facts.name, EventLevel::warning,
        fmt::format("{}: ignored an invalid evaluation of version {}: {}", facts.name,
                    evaluation.version(), record.error().message()));
    co_return;
  }
  note_answered(*peer, evaluation.version());
  if (has_nothing(evaluation)) co_return;
  auto write = [record = *record](Store& store) -> Result<std::vector<DeclaredMetric>> {
    FL_CHECK(store.measurements().add(record));
    return store.measurements().declared(record.run);
  };
  auto declared = co_await parts_.control.store.with_store(std::move(write));
  if (declared) {
    // Only durable answers are judged, so a restart comes to the same judgement.
    declared_ = std::move(*declared);
    if (judges_by(wanted_kinds())) {
      judge(*record);
    } else if (const auto judged = co_await judge_all(); !judged && !will_pass(judged.error())) {
      parts_.control.fail(judged.error());
    }
    log_answer(*record);
  } else if (!will_pass(declared.error())) {
    parts_.control.fail(declared.error());
  }
  parts_.control.changed.notify();
}

std::string Evaluations::main_metric() const {
  if (!parts_.control.plan.settings.metric.empty()) return parts_.control.plan.settings.metric;
  if (target_) return target_->metric;
  return declared_.empty() ? std::string(loss_name) : declared_.front().kind.name;
}

std::vector<MetricKind> Evaluations::wanted_kinds() const {
  std::vector<MetricKind> declared;
  for (const DeclaredMetric& metric : declared_) declared.push_back(metric.kind);
  const std::string main = main_metric();
  std::vector<MetricKind> kinds{judged_kind(main, target_, declared)};
  if (target_ && target_->metric != main)
    kinds.push_back(judged_kind(target_->metric, target_, declared));
  return kinds;
}

bool Evaluations::judges_by(const std::vector<MetricKind>& kinds) const {
  return std::ranges::equal(judgements_, kinds, &Judgement::judges_by);
}

/// Judges all durable answers anew, by what the metrics' kinds are now.
Awaitable<Result<void>> Evaluations::judge_all() {
  auto read = [run = parts_.control.plan.run.id,
               least = parts_.control.plan.settings.target_examples](Store& store) {
    return store.measurements().evaluator_answers(run, least);
  };
  FL_CO_TRY(const auto answers, co_await parts_.control.store.with_store(std::move(read)));
  judgements_.clear();
  for (const MetricKind& kind : wanted_kinds()) judgements_.emplace_back(kind);
  for (const EvaluationRecord& answer : answers) judge(answer);
  co_return success();
}

/// Trainers' own figures, and those of too few examples, are not judged.
bool Evaluations::counts(const EvaluationRecord& answer) const {
  return answer.evaluator && answer.examples >= parts_.control.plan.settings.target_examples &&
         parts_.roster.why_expelled(answer.client).empty();
}

void Evaluations::judge(const EvaluationRecord& answer) {
  if (!counts(answer)) return;
  for (Judgement& judgement : judgements_) judgement.note(answer);
  if (!newest_.empty() && newest_.front().version > answer.version) return;
  if (!newest_.empty() && newest_.front().version < answer.version) newest_.clear();
  std::erase_if(newest_, [&](const auto& other) { return other.client == answer.client; });
  newest_.push_back(answer);
  // Sorted, so that sums round in the same way whoever answers first.
  std::ranges::sort(newest_, {}, &EvaluationRecord::client);
}

void Evaluations::log_answer(const EvaluationRecord& answer) const {
  if (!counts(answer)) return;
  std::string together;
  if (newest_.size() > 1 && newest_.front().version == answer.version) {
    const Judgement& judgement = judgements_.front();
    const std::string& main = judgement.kind().name;
    const auto value = judgement.value_of(answer.version, voters_of(judgement));
    together = fmt::format("; {} of {} evaluators: {}", main, newest_.size(),
                           value ? metric_text(main, *value) : "none");
  }
  log_info("version {}: {} ({}){}", answer.version, metrics_text(answer.metrics, answer.loss),
           answer.client, together);
}

void Evaluations::forget(const std::string& client) {
  parts_.control.expect_strand();
  if (!unasked_.contains(client)) return;
  for (Judgement& judgement : judgements_) judgement.forget(client);
  std::erase_if(newest_, [&](const auto& answer) { return answer.client == client; });
  unasked_.erase(client);
  parts_.control.changed.notify();
}

/// The evaluators that are here or were a moment ago, and those that have answered lately. If the
/// settings name the metric, only those that measure it: an evaluator of something else must not
/// keep the run from its end. If they don't, a single evaluator must not make up a metric that only
/// it measures, and judge by that.
Voters Evaluations::voters_of(const Judgement& judgement) const {
  const std::string& name = judgement.kind().name;
  const bool is_named = !parts_.control.plan.settings.metric.empty() || target_;
  Version newest = 0;
  for (const auto& entry : unasked_) {
    const auto next = next_.find(entry.first);
    if (next != next_.end()) newest = std::max(newest, next->second);
  }
  Voters voters;
  for (const auto& entry : unasked_) {
    const std::string& client = entry.first;
    const auto peer = parts_.roster.find(client);
    const auto next = next_.find(client);
    const bool has_answered_lately = judgement.knows(client) && next != next_.end() &&
                                     newest - next->second <= evaluator_remembered;
    if (!parts_.roster.is_awaited(client) && !has_answered_lately) continue;
    if (peer && peer->facts().holdout_examples < parts_.control.plan.settings.target_examples)
      continue;
    const bool measures =
        name == loss_name || judgement.knows(client) ||
        (peer && std::ranges::find(peer->facts().metrics, name, &MetricKind::name) !=
                     peer->facts().metrics.end());
    if (measures || !is_named) voters.insert(client);
  }
  return voters;
}

std::vector<MetricFigure> Evaluations::newest_figures() const {
  std::vector<std::string> names;
  std::size_t diverged = 0;
  for (const EvaluationRecord& answer : newest_) {
    diverged += std::isnan(answer.loss) ? 1 : 0;
    for (const MetricValue& value : answer.metrics)
      if (std::ranges::find(names, value.name) == names.end()) names.push_back(value.name);
  }
  if (2 * diverged > newest_.size()) return {};
  if (!newest_.empty()) names.emplace_back(loss_name);
  std::vector<MetricFigure> figures;
  for (const std::string& name : names) {
    const auto declared = std::ranges::find(
        declared_, name, [](const auto& of) -> const auto& { return of.kind.name; });
    const Combine how = declared == declared_.end() ? Combine::mean : declared->kind.combine;
    std::vector<Claim> claims;
    for (const EvaluationRecord& answer : newest_) {
      const MetricValue loss = loss_of(answer);
      const MetricValue* const found =
          name == loss_name ? &loss : find_metric(answer.metrics, name);
      if (found != nullptr)
        claims.push_back({found->value, found->weight, static_cast<double>(answer.examples)});
    }
    if (const auto value = combine(how, counted_claims(claims)))
      figures.push_back({name, *value, how != Combine::none || claims.size() == 1});
  }
  return figures;
}

const Judgement* Evaluations::judgement_of(const std::string& metric) const {
  const auto found = std::ranges::find(
      judgements_, metric, [](const Judgement& judgement) { return judgement.kind().name; });
  return found == judgements_.end() || found->empty() ? nullptr : &*found;
}

std::string Evaluations::end_by_target() const {
  const Judgement* const judged = target_ ? judgement_of(target_->metric) : nullptr;
  if (judged == nullptr) return "";
  const Voters voters = voters_of(*judged);
  const auto newest = judged->newest(voters);
  const auto value = newest ? judged->value_of(*newest, voters) : std::nullopt;
  if (!value || !target_->is_met(*value)) return "";
  return fmt::format("version {} has {} {}, the target is {}", *newest, target_->metric,
                     metric_text(target_->metric, *value),
                     metric_text(target_->metric, target_->bound));
}

std::string Evaluations::end_by_patience() const {
  const std::uint32_t patience = parts_.control.plan.settings.patience;
  if (patience == 0) return "";
  const Judgement* const judged = judgement_of(main_metric());
  if (judged == nullptr) return "";
  const Voters voters = voters_of(*judged);
  if (!judged->is_stuck(patience, voters)) return "";
  const std::string& name = judged->kind().name;
  const Version best_version = judged->best(voters);
  const auto best = judged->value_of(best_version, voters);
  if (!best && judged->has_diverged(voters))
    return fmt::format("the loss was not finite in {} rounds: the model diverged", patience);
  if (!best) return fmt::format("no version had a value of {} in {} rounds", name, patience);
  return fmt::format("no version was better than version {}, with {} {}, in {} rounds",
                     best_version, name, metric_text(name, *best), patience);
}

std::string Evaluations::early_end() const {
  if (!kept_end_.empty()) return kept_end_;
  if (parts_.versions.empty()) return "";
  if (round_of(parts_.versions.newest_number()) >= parts_.control.plan.settings.rounds) return "";
  const std::string why = end_by_target();
  return why.empty() ? end_by_patience() : why;
}

void Evaluations::take_end(std::string why) {
  parts_.control.expect_strand();
  if (!kept_end_.empty()) return;
  kept_end_ = std::move(why);
  parts_.control.changed.notify();
}

Awaitable<Result<void>> Evaluations::keep_end(std::string why) {
  parts_.control.expect_strand();
  kept_end_ = why;
  auto keep = [run = parts_.control.plan.run.id, why = std::move(why)](Store& store) {
    return store.runs().end_early(run, why);
  };
  co_return co_await parts_.control.store.with_store(std::move(keep));
}

bool Evaluations::owes_last(const Peer& peer) const {
  const auto& facts = peer.facts();
  if (parts_.versions.empty()) return false;  // An operator has removed the run before it began.
  if (!facts.evaluator && !can_evaluate(facts)) return false;
  const auto next = next_.find(facts.name);
  return next == next_.end() || next->second <= parts_.versions.newest_number();
}

Awaitable<void> Evaluations::await_last() {
  parts_.control.expect_strand();
  RunControl& control = parts_.control;
  control.phase = Phase::waiting_for_evaluations;
  TimePoint deadline = Clock::now() + limits::last_evaluations_max;
  auto before = next_;
  const auto is_missing = [this] {
    return std::ranges::any_of(parts_.roster.here(),
                               [this](const auto& peer) { return owes_last(*peer); });
  };
  while (!control.is_stopping() && Clock::now() < deadline && is_missing()) {
    co_await control.changed.wait(deadline);
    if (before == next_) continue;
    before = next_;  // Another answer has come.
    deadline = Clock::now() + limits::last_evaluations_max;
  }
}

}  // namespace fl::server
