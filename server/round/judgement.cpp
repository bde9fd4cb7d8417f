// SPDX-License-Identifier: Apache-2.0
#include "server/round/judgement.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace fl {

namespace {

bool decide_by_majority(const Voters& voters) { return voters.size() >= claims_to_judge_min; }

std::size_t majority_of(const Voters& voters) { return voters.size() / 2 + 1; }

}  // namespace

MetricValue loss_of(const EvaluationRecord& answer) {
  return {std::string(loss_name), answer.loss, answer.predictions};
}

void Judgement::note(const EvaluationRecord& answer) {
  MetricValue value = loss_of(answer);
  const bool is_finite = std::isfinite(answer.loss);
  if (kind_.name != loss_name) {
    const MetricValue* const found = find_metric(answer.metrics, kind_.name);
    if (found == nullptr && is_finite) return;
    if (found != nullptr) value = *found;
  }
  OfVersion& clients = versions_[answer.version];
  std::erase_if(clients, [&](const OfClient& of) { return of.client == answer.client; });
  clients.push_back({answer.client,
                     is_finite,
                     {value.value, value.weight, static_cast<double>(answer.examples)}});
  // In one order, so that sums round in the same way whoever answers first.
  std::ranges::sort(clients, {}, &OfClient::client);
  note_mean(answer.version);
  note_own(answer.client, answer.version);
}

void Judgement::forget(const std::string& client) {
  for (auto& [version, clients] : versions_)
    std::erase_if(clients, [&](const OfClient& of) { return of.client == client; });
  std::erase_if(versions_, [](const auto& entry) { return entry.second.empty(); });
  own_.erase(client);
  if (!versions_.empty()) find_best();
}

std::optional<Version> Judgement::newest(const Voters& voters) const {
  const bool by_majority = decide_by_majority(voters);
  for (auto at = versions_.rbegin(); at != versions_.rend(); ++at) {
    const auto said = std::ranges::count_if(
        at->second, [&](const OfClient& of) { return voters.contains(of.client); });
    if (!by_majority || static_cast<std::size_t>(said) >= majority_of(voters)) return at->first;
  }
  return std::nullopt;
}

std::optional<double> Judgement::value_of(Version version, const Voters& voters) const {
  const auto found = versions_.find(version);
  if (found == versions_.end()) return std::nullopt;
  return decide_by_majority(voters) ? middle_of(found->second, voters) : mean_of(found->second);
}

Version Judgement::best(const Voters& voters) const {
  FL_ASSERT(!empty());
  std::vector<Version> own;
  for (const auto& [client, of] : own_)
    if (voters.contains(client)) own.push_back(of.best);
  if (!decide_by_majority(voters) || own.empty()) return best_;
  std::ranges::sort(own);
  return own[(own.size() - 1) / 2];
}

bool Judgement::is_stuck(std::uint32_t patience, const Voters& voters) const {
  if (empty()) return false;
  if (!decide_by_majority(voters)) return versions_.rbegin()->first - best_ >= patience;
  const auto say_so = std::ranges::count_if(own_, [&](const auto& entry) {
    const auto& [client, own] = entry;
    return voters.contains(client) && own.newest - own.best >= patience;
  });
  return static_cast<std::size_t>(say_so) >= majority_of(voters);
}

bool Judgement::has_diverged(const Voters& voters) const {
  const auto version = newest(voters);
  if (!version) return false;
  const OfVersion& clients = versions_.at(*version);
  const auto wrong = std::ranges::count(clients, false, &OfClient::is_finite);
  return 2 * static_cast<std::size_t>(wrong) > clients.size();
}

double Judgement::score(std::optional<double> value) const {
  if (!value) return -std::numeric_limits<double>::infinity();
  return kind_.lower_is_better ? -*value : *value;
}

double Judgement::own_score(const OfClient& of) const {
  if (!of.is_finite || !std::isfinite(of.claim.value)) return score(std::nullopt);
  return score(of.claim.value);
}

/// A loss that is not finite is missing, unless most of them are.
std::optional<double> Judgement::mean_of(const OfVersion& clients) const {
  std::vector<Claim> claims;
  for (const OfClient& of : clients)
    if (of.is_finite) claims.push_back(of.claim);
  if (2 * claims.size() < clients.size()) return std::nullopt;
  return combine(kind_.combine, counted_claims(claims));
}

std::optional<double> Judgement::middle_of(const OfVersion& clients, const Voters& voters) const {
  std::vector<double> scores;
  for (const OfClient& of : clients) {
    if (voters.contains(of.client) && std::isfinite(own_score(of))) scores.push_back(own_score(of));
  }
  if (scores.size() < majority_of(voters)) return std::nullopt;
  std::ranges::sort(scores, std::greater());
  const double middle = scores[majority_of(voters) - 1];
  return kind_.lower_is_better ? -middle : middle;
}

void Judgement::note_mean(Version version) {
  const double score_now = score(mean_of(versions_.at(version)));
  const bool was_best = version == best_ && versions_.size() > 1;
  const bool is_better = score_now > best_score_ || (score_now == best_score_ && version < best_);
  if (versions_.size() == 1 || (!was_best && is_better)) {
    best_ = version;
    best_score_ = score_now;
  } else if (was_best) {
    find_best();
  }
}

void Judgement::find_best() {
  best_ = versions_.begin()->first;
  best_score_ = score(mean_of(versions_.begin()->second));
  for (const auto& [version, clients] : versions_) {
    const double score_now = score(mean_of(clients));
    if (score_now <= best_score_) continue;
    best_ = version;
    best_score_ = score_now;
  }
}

/// Looks through all versions only where the client's best one may have got worse.
void Judgement::note_own(const std::string& client, Version version) {
  const auto score_at = [&](const OfVersion& clients) {
    return own_score(*std::ranges::find(clients, client, &OfClient::client));
  };
  const auto [at, is_first] = own_.try_emplace(client);
  Own& own = at->second;
  own.newest = std::max(own.newest, version);
  const double score_now = score_at(versions_.at(version));
  const bool is_better =
      score_now > own.best_score || (score_now == own.best_score && version < own.best);
  if (is_first || (version != own.best && is_better)) {
    own.best = version;
    own.best_score = score_now;
  } else if (version == own.best) {
    own.best_score = score_now;
    for (const auto& [other, clients] : versions_) {
      if (std::ranges::find(clients, client, &OfClient::client) == clients.end()) continue;
      const double score_then = score_at(clients);
      if (score_then < own.best_score || (score_then == own.best_score && other >= own.best))
        continue;
      own.best = other;
      own.best_score = score_then;
    }
  }
}

}  // namespace fl
