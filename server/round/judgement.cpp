// SPDX-License-Identifier: Apache-2.0
#include "server/round/judgement.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace fl::server {

namespace {

bool decide_by_majority(const Voters& voters) { return voters.size() >= claims_to_judge_min; }

std::size_t majority_of(const Voters& voters) { return voters.size() / 2 + 1; }

}  // namespace

MetricValue loss_of(const EvaluationRecord& answer) {
  return {std::string(loss_name), answer.loss, answer.predictions};
}

/// A weighted mean is the same, whether it is exact or not.
bool Judgement::judges_by(const MetricKind& kind) const {
  return kind.name == kind_.name && kind.lower_is_better == kind_.lower_is_better &&
         (kind.combine == Combine::log_mean) == (kind_.combine == Combine::log_mean);
}

void Judgement::note(const EvaluationRecord& answer) {
  MetricValue value = loss_of(answer);
  const bool is_finite = std::isfinite(answer.loss);
  bool has_metric = true;
  if (kind_.name != loss_name) {
    const MetricValue* const found = find_metric(answer.metrics, kind_.name);
    has_metric = found != nullptr;
    if (!has_metric && is_finite) return;
    if (has_metric) value = *found;
  }
  auto& clients = versions_[answer.version].clients;
  const auto before = std::ranges::find(clients, answer.client, &OfClient::client);
  const bool had_metric = before != clients.end() && before->has_metric;
  std::erase_if(clients, [&](const OfClient& of) { return of.client == answer.client; });
  clients.push_back({answer.client,
                     is_finite,
                     has_metric,
                     {value.value, value.weight, static_cast<double>(answer.examples)}});
  // Sorted, so that sums round in the same way whoever answers first.
  std::ranges::sort(clients, {}, &OfClient::client);
  note_mean(answer.version);
  note_own(answer.client, answer.version);
  own_.at(answer.client).measured += (has_metric ? 1 : 0) - (had_metric ? 1 : 0);
}

void Judgement::forget(const std::string& client) {
  for (auto at = versions_.begin(); at != versions_.end();) {
    auto& [version, of_version] = *at;
    const auto erased =
        std::erase_if(of_version.clients, [&](const OfClient& of) { return of.client == client; });
    if (of_version.clients.empty()) {
      by_mean_.erase({-of_version.score, version});
      at = versions_.erase(at);
      continue;
    }
    if (erased > 0) note_mean(version);
    ++at;
  }
  own_.erase(client);
}

bool Judgement::knows(const std::string& client) const {
  const auto found = own_.find(client);
  return found != own_.end() && found->second.measured > 0;
}

std::optional<Version> Judgement::newest(const Voters& voters) const {
  const bool by_majority = decide_by_majority(voters);
  for (auto at = versions_.rbegin(); at != versions_.rend(); ++at) {
    const auto said = std::ranges::count_if(at->second.clients, [&](const OfClient& of) {
      return voters.contains(of.client) || (!by_majority && of.has_metric);
    });
    const std::size_t enough = by_majority ? majority_of(voters) : 1;
    if (static_cast<std::size_t>(said) >= enough) return at->first;
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
  if (!decide_by_majority(voters) || own.empty()) return by_mean_.begin()->second;
  std::ranges::sort(own);
  return own[(own.size() - 1) / 2];
}

bool Judgement::is_stuck(std::uint32_t patience, const Voters& voters) const {
  if (empty()) return false;
  if (!decide_by_majority(voters)) {
    const auto last = newest(voters);
    return last && *last - best(voters) >= patience;
  }
  const auto say_so = std::ranges::count_if(own_, [&](const auto& entry) {
    const auto& [client, own] = entry;
    return voters.contains(client) && own.newest - own.best >= patience;
  });
  return static_cast<std::size_t>(say_so) >= majority_of(voters);
}

bool Judgement::has_diverged(const Voters& voters) const {
  const auto version = newest(voters);
  if (!version) return false;
  std::size_t said = 0;
  std::size_t wrong = 0;
  for (const OfClient& of : versions_.at(*version).clients) {
    if (!voters.contains(of.client)) continue;
    ++said;
    if (!of.is_finite) ++wrong;
  }
  return 2 * wrong > said;
}

double Judgement::score(std::optional<double> value) const {
  if (!value || std::isnan(*value)) return -std::numeric_limits<double>::infinity();
  return kind_.lower_is_better ? -*value : *value;
}

double Judgement::own_score(const OfClient& of) const {
  if (!of.is_finite || !std::isfinite(of.claim.value)) return score(std::nullopt);
  return score(of.claim.value);
}

/// A loss that is not finite counts as missing, unless most of them are not finite.
std::optional<double> Judgement::mean_of(const OfVersion& version) const {
  std::size_t measured = 0;
  std::vector<Claim> claims;
  for (const OfClient& of : version.clients) {
    if (!of.has_metric) continue;
    ++measured;
    if (of.is_finite) claims.push_back(of.claim);
  }
  if (2 * claims.size() < measured) return std::nullopt;
  return combine(kind_.combine, counted_claims(claims));
}

std::optional<double> Judgement::middle_of(const OfVersion& version, const Voters& voters) const {
  std::vector<double> scores;
  for (const OfClient& of : version.clients) {
    if (voters.contains(of.client) && std::isfinite(own_score(of))) scores.push_back(own_score(of));
  }
  if (scores.size() < majority_of(voters)) return std::nullopt;
  std::ranges::sort(scores, std::greater());
  const double middle = scores[majority_of(voters) - 1];
  return kind_.lower_is_better ? -middle : middle;
}

/// Updates only this version's mean, so the time for all of a run's answers is that of sorting
/// them.
void Judgement::note_mean(Version version) {
  OfVersion& of = versions_.at(version);
  by_mean_.erase({-of.score, version});
  of.score = score(mean_of(of));
  by_mean_.insert({-of.score, version});
}

/// Looks through all versions only if the client's best one may have got worse.
void Judgement::note_own(const std::string& client, Version version) {
  const auto score_at = [&](const OfVersion& of) {
    return own_score(*std::ranges::find(of.clients, client, &OfClient::client));
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
    for (const auto& [other, of] : versions_) {
      const auto& all = of.clients;
      if (std::ranges::find(all, client, &OfClient::client) == all.end()) continue;
      const double score_then = score_at(of);
      if (score_then < own.best_score || (score_then == own.best_score && other >= own.best))
        continue;
      own.best = other;
      own.best_score = score_then;
    }
  }
}

}  // namespace fl::server
