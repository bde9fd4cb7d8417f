// The round engine and what is measured of its versions: whom it asks, how far behind an evaluator
// may be, what it makes of the answers.
#include "server/round/engine.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

/// Evaluators answer for every version; at the end the trainers' held-out data count too.
void RoundEngine::ask_evaluators() {
  if (versions_.empty()) return;
  const bool is_last = is_over();
  for (const auto& [name, peer] : peers_) {
    const bool has_holdout = is_last && peer->facts().holdout_examples > 0;
    if (peer->facts().evaluator) {
      ask_to_catch_up(*peer);
    } else if (has_holdout) {
      ask_to_evaluate(*peer, *versions_.rbegin()->second);
    }
  }
}

/// In order, and a few at a time. One that is new begins with the newest version.
void RoundEngine::ask_to_catch_up(Peer& peer) {
  if (versions_.empty()) return;
  const auto& name = peer.facts().name;
  const Round next = next_evaluation_.try_emplace(name, versions_.rbegin()->first).first->second;
  const Round first = std::max(next, versions_.begin()->first);
  Round& unasked = unasked_evaluation_[name];
  for (auto at = versions_.lower_bound(std::max(first, unasked));
       at != versions_.end() && at->first < first + limits::evaluations_asked_max; ++at) {
    ask_to_evaluate(peer, *at->second);
    unasked = at->first + 1;
  }
}

void RoundEngine::ask_to_evaluate(Peer& peer, const ModelVersion& version) {
  wire::Header header;
  header.mutable_evaluate()->set_version(version.record.version);
  header.mutable_evaluate()->set_version_digest(version.record.digest.raw());
  peer.post(std::move(header));
}

/// A client has answered for a version, or can't.
void RoundEngine::note_evaluated(Peer& peer, Round version) {
  auto& next = next_evaluation_[peer.facts().name];
  next = std::max(next, version + 1);
  if (peer.facts().evaluator) ask_to_catch_up(peer);
  changed_.notify();
}

/// From which version on an evaluator that is here, or was a moment ago, may still ask for one;
/// past the limit it is too slow for the rounds.
Round RoundEngine::oldest_awaited(Round made) const {
  Round oldest = made;
  for (const auto& [name, unasked] : unasked_evaluation_) {
    const auto next = next_evaluation_.find(name);
    const auto absent = absent_.find(name);
    const bool is_awaited =
        peers_.contains(name) || (absent != absent_.end() && absent->second > Clock::now());
    if (is_awaited && next != next_evaluation_.end()) oldest = std::min(oldest, next->second);
  }
  const Round limit = std::clamp(
      static_cast<Round>(std::min<std::uint64_t>(limits::evaluations_behind_bytes / layout_.bytes(),
                                                 limits::evaluations_behind_max)),
      limits::evaluations_behind_min, limits::evaluations_behind_max);
  return std::max(oldest, made > limit ? made - limit : 0);
}

Awaitable<void> RoundEngine::evaluation(std::shared_ptr<Peer> peer, wire::Evaluation evaluation) {
  const auto& facts = peer->facts();
  if (versions_.empty() || evaluation.version() > versions_.rbegin()->first ||
      evaluation.examples() > limits::examples_max || !std::isfinite(evaluation.loss()) ||
      !(evaluation.accuracy() >= 0 && evaluation.accuracy() <= 1) ||
      !std::isfinite(evaluation.own_loss()) ||
      !(evaluation.own_accuracy() >= 0 && evaluation.own_accuracy() <= 1)) {
    report("warning",
           fmt::format(
               "{}: an evaluation that can't be: version {}, {} examples, loss {}, accuracy {}, "
               "of its own model {} and {}",
               facts.name, evaluation.version(), evaluation.examples(), evaluation.loss(),
               evaluation.accuracy(), evaluation.own_loss(), evaluation.own_accuracy()));
    co_return;
  }
  note_evaluated(*peer, evaluation.version());
  if (evaluation.examples() == 0) co_return;
  EvaluationRecord record;
  record.run = run_.id;
  record.version = evaluation.version();
  record.client = facts.name;
  record.evaluator = facts.evaluator;
  record.examples = evaluation.examples();
  record.loss = evaluation.loss();
  record.accuracy = evaluation.accuracy();
  const LocalRule* const rule = strategy_->local();
  if (rule != nullptr && rule->own_model() != nullptr && !facts.evaluator)
    record.own = EvaluationRecord::Own{evaluation.own_loss(), evaluation.own_accuracy()};
  if (facts.evaluator && (!accuracy_ || record.version >= accuracy_version_)) {
    note_accuracy(record.version, record.accuracy);
    log_info("version {}: accuracy {:.2f}%, loss {:.4f} ({})", record.version,
             100 * record.accuracy, record.loss, facts.name);
  }
  auto write = [record](Store& store) { return store.add_evaluation(record); };
  auto written = co_await with_store(std::move(write));
  if (!written && !will_pass(written.error())) fail(written.error());
  changed_.notify();
}

void RoundEngine::note_accuracy(Round version, double accuracy) {
  if (accuracy_ && version < accuracy_version_) return;
  if (!accuracy_ || accuracy > best_accuracy_) {
    best_accuracy_ = accuracy;
    best_version_ = version;
  }
  accuracy_ = accuracy;
  accuracy_version_ = version;
}

/// Whether it has not yet answered for the newest version, and can.
bool RoundEngine::owes_last_evaluation(const Peer& peer) const {
  const auto& facts = peer.facts();
  if (!facts.evaluator && facts.holdout_examples == 0) return false;
  const auto next = next_evaluation_.find(facts.name);
  return next == next_evaluation_.end() || next->second <= versions_.rbegin()->first;
}

Awaitable<void> RoundEngine::await_last_evaluations() {
  phase_ = "waiting for the last evaluations";
  TimePoint deadline = Clock::now() + limits::last_evaluations_max;
  auto before = next_evaluation_;
  const auto is_missing = [this](const auto& entry) { return owes_last_evaluation(*entry.second); };
  while (!stopping_ && Clock::now() < deadline &&
         std::any_of(peers_.begin(), peers_.end(), is_missing)) {
    co_await changed_.wait(deadline);
    if (before == next_evaluation_) continue;
    before = next_evaluation_;  // It goes on.
    deadline = Clock::now() + limits::last_evaluations_max;
  }
}

}  // namespace fl
