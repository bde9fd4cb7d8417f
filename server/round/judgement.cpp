// SPDX-License-Identifier: Apache-2.0
#include "server/round/judgement.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fl {

Weighted weighted_of(const MetricValue& value, std::uint64_t examples) {
  return {value.value, value.weight > 0 ? value.weight : static_cast<double>(examples)};
}

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
  clients.push_back({answer.client, is_finite, weighted_of(value, answer.examples)});
  // In one order, so that sums round in the same way whoever answers first.
  std::ranges::sort(clients, {}, &OfClient::client);
  const double score = score_of(answer.version);
  const bool was_best = answer.version == best_ && versions_.size() > 1;
  const bool is_better = score > best_score_ || (score == best_score_ && answer.version < best_);
  if (versions_.size() == 1 || (!was_best && is_better)) {
    best_ = answer.version;
    best_score_ = score;
  } else if (was_best) {
    find_best();
  }
}

bool Judgement::has_diverged() const {
  FL_ASSERT(!empty());
  return !std::ranges::all_of(versions_.rbegin()->second, &OfClient::is_finite);
}

std::optional<double> Judgement::value_of(Version version) const {
  const auto found = versions_.find(version);
  if (found == versions_.end()) return std::nullopt;
  if (!std::ranges::all_of(found->second, &OfClient::is_finite)) return std::nullopt;
  std::vector<Weighted> values;
  for (const OfClient& of : found->second) values.push_back(of.weighted);
  return combine(kind_.combine, values);
}

double Judgement::score_of(Version version) const {
  const auto value = value_of(version);
  if (!value) return -std::numeric_limits<double>::infinity();
  return kind_.lower_is_better ? -*value : *value;
}

void Judgement::find_best() {
  best_ = versions_.begin()->first;
  best_score_ = score_of(best_);
  for (const auto& [version, clients] : versions_) {
    const double score = score_of(version);
    if (score <= best_score_) continue;
    best_ = version;
    best_score_ = score;
  }
}

}  // namespace fl
