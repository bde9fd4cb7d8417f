// SPDX-License-Identifier: Apache-2.0
#include "server/round/evaluations.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

bool is_accuracy(double value) { return std::isnan(value) || (value >= 0 && value <= 1); }

/// A loss that is not finite is that of a model that diverged: recorded without figures.
double finite_or_nan(double value) { return std::isfinite(value) ? value : std::nan(""); }

}  // namespace

Awaitable<Result<std::vector<std::string>>> Evaluations::restore() {
  auto judge = [run = parts_.plan.run.id, least = parts_.plan.settings.target_examples](
                   Store& store) { return store.evaluator_accuracies(run, least); };
  FL_CO_TRY(const auto accuracies, co_await parts_.store.with_store(std::move(judge)));
  for (const auto& [version, accuracy] : accuracies) note_accuracy(version, accuracy);
  auto find = [run = parts_.plan.run.id](Store& store) { return store.newest_evaluations(run); };
  FL_CO_TRY(const auto newest, co_await parts_.store.with_store(std::move(find)));
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
    } else if (is_last && peer->facts().holdout_examples > 0) {
      ask(*peer, *parts_.versions.newest());
    }
  }
}

void Evaluations::welcome(Peer& peer, bool is_last) {
  parts_.control.expect_strand();
  if (peer.facts().evaluator) {
    unasked_[peer.facts().name] = 0;
    ask_to_catch_up(peer);
  } else if (is_last && owes_last(peer)) {
    ask(peer, *parts_.versions.newest());
  }
}

/// Asks for the versions in order, a few at a time. A new evaluator begins with the newest version.
void Evaluations::ask_to_catch_up(Peer& peer) {
  const auto& versions = parts_.versions.all();
  if (versions.empty()) return;
  const auto& name = peer.facts().name;
  const Version next = next_.try_emplace(name, versions.rbegin()->first).first->second;
  const Version first = std::max(next, versions.begin()->first);
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
  const Round limit = std::clamp(static_cast<Round>(std::min<std::uint64_t>(
                                     limits::evaluations_behind_bytes / parts_.plan.layout.bytes(),
                                     limits::evaluations_behind_max)),
                                 limits::evaluations_behind_min, limits::evaluations_behind_max);
  return std::max(oldest, made > limit ? made - limit : 0);
}

Awaitable<void> Evaluations::record(std::shared_ptr<Peer> peer, wire::Evaluation evaluation) {
  parts_.control.expect_strand();
  const auto& facts = peer->facts();
  const bool is_right =
      !parts_.versions.empty() && evaluation.version() <= parts_.versions.newest_number() &&
      evaluation.examples() <= facts.holdout_examples && is_accuracy(evaluation.accuracy()) &&
      is_accuracy(evaluation.own_accuracy());
  if (!is_right) {
    parts_.control.report_of(
        facts.name, EventLevel::warning,
        fmt::format("{}: ignored an invalid evaluation: version {}, {} examples, loss {}, accuracy "
                    "{}, own model's loss {} and accuracy {}",
                    facts.name, evaluation.version(), evaluation.examples(), evaluation.loss(),
                    evaluation.accuracy(), evaluation.own_loss(), evaluation.own_accuracy()));
    co_return;
  }
  note_answered(*peer, evaluation.version());
  if (evaluation.examples() == 0) co_return;
  EvaluationRecord record;
  record.run = parts_.plan.run.id;
  record.version = evaluation.version();
  record.client = facts.name;
  record.evaluator = facts.evaluator;
  record.examples = evaluation.examples();
  record.loss = finite_or_nan(evaluation.loss());
  record.accuracy = evaluation.accuracy();
  const LocalRule* const rule = parts_.plan.strategy->local();
  if (rule != nullptr && rule->own_model() != nullptr && !facts.evaluator)
    record.own =
        EvaluationRecord::Own{finite_or_nan(evaluation.own_loss()), evaluation.own_accuracy()};
  const bool counts = record.examples >= parts_.plan.settings.target_examples;
  if (facts.evaluator && counts && record.version >= judged_version_) {
    note_accuracy(record.version, std::isnan(record.loss) ? record.loss : record.accuracy);
    log_info("version {}: accuracy {:.2f}%, loss {:.4f} ({})", record.version,
             100 * record.accuracy, record.loss, facts.name);
  }
  auto write = [record](Store& store) { return store.add_evaluation(record); };
  const auto written = co_await parts_.store.with_store(std::move(write));
  if (!written && !will_pass(written.error())) parts_.control.fail(written.error());
  parts_.control.changed.notify();
}

/// NaN: the model diverged, so this version is no better than any other.
void Evaluations::note_accuracy(Version version, double accuracy) {
  if (version < judged_version_) return;
  if (!is_judged_ || accuracy > best_accuracy_) best_version_ = version;
  if (accuracy > best_accuracy_) best_accuracy_ = accuracy;
  is_judged_ = true;
  judged_version_ = version;
  accuracy_ = std::isnan(accuracy) ? std::nullopt : std::optional(accuracy);
}

std::string Evaluations::early_end() const {
  const RunSettings& settings = parts_.plan.settings;
  if (!is_judged_ || parts_.versions.newest_number() >= settings.rounds) return "";
  if (settings.target_accuracy > 0 && accuracy_ && *accuracy_ >= settings.target_accuracy)
    return fmt::format("version {} has {:.2f}% accuracy, the target is {:.2f}%", judged_version_,
                       100 * *accuracy_, 100 * settings.target_accuracy);
  if (settings.patience == 0 || judged_version_ - best_version_ < settings.patience) return "";
  if (best_accuracy_ < 0)
    return fmt::format("the loss was not finite in {} rounds: the model diverged",
                       settings.patience);
  return fmt::format("no version was better than version {}, with {:.2f}%, in {} rounds",
                     best_version_, 100 * best_accuracy_, settings.patience);
}

bool Evaluations::owes_last(const Peer& peer) const {
  const auto& facts = peer.facts();
  if (!facts.evaluator && facts.holdout_examples == 0) return false;
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
    before = next_;  // One more has come.
    deadline = Clock::now() + limits::last_evaluations_max;
  }
}

}  // namespace fl
