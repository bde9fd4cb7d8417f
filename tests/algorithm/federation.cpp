// SPDX-License-Identifier: Apache-2.0
#include "tests/algorithm/federation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace fl::test {

Vector optimum(const std::vector<Quadratic>& clients, bool is_uniform) {
  Vector point(clients.front().centre.size());
  for (std::size_t i = 0; i < point.size(); ++i) {
    double pull = 0;
    double stiffness = 0;
    for (const auto& client : clients) {
      const double weight = is_uniform ? 1 : static_cast<double>(client.examples);
      pull += weight * client.curvature[i] * client.centre[i];
      stiffness += weight * client.curvature[i];
    }
    point[i] = static_cast<float>(pull / stiffness);
  }
  return point;
}

Federation::Federation(std::string_view strategy, std::vector<Quadratic> clients,
                       TrainSettings settings)
    : strategy_(parse_strategy(strategy).value()),
      clients_(std::move(clients)),
      settings_(settings),
      model_(clients_.front().centre.size()),
      shared_(strategy_->shared_vector().empty() ? 0 : model_.size()),
      kept_(clients_.size(), Vector(model_.size())) {
  settings_.proximal_mu = std::max(settings_.proximal_mu, strategy_->proximal_mu());
  for (unsigned v = 0; v < strategy_->state_vectors(); ++v)
    state_.emplace_back(model_.size(), strategy_->initial_state(v));
}

/// The update of a client, by SGD with momentum on the exact gradient.
Vector Federation::train(const Quadratic& client, const Vector& correction) const {
  Vector w = model_;
  std::vector<double> velocity(w.size());
  for (std::uint64_t step = 0; step < client.steps; ++step) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double added = correction.empty() ? 0 : correction[i];
      const double gradient = client.curvature[i] * (w[i] - client.centre[i]) + added +
                              settings_.proximal_mu * (w[i] - model_[i]);
      velocity[i] = settings_.momentum * velocity[i] + gradient;
      w[i] = static_cast<float>(w[i] - settings_.lr * velocity[i]);
    }
  }
  for (std::size_t i = 0; i < w.size(); ++i) w[i] -= model_[i];
  return w;
}

void Federation::run_round(const std::vector<std::size_t>& named) {
  std::vector<std::size_t> who = named;
  if (who.empty()) {
    who.resize(clients_.size());
    std::iota(who.begin(), who.end(), 0);
  }
  const LocalRule* const rule = strategy_->local();
  std::vector<double> mean(model_.size());
  std::vector<double> shared_mean(shared_.size());
  double weights = 0;
  double steps = 0;
  for (const std::size_t k : who) {
    const Quadratic& client = clients_[k];
    Vector correction(model_.size());
    if (rule == nullptr || !rule->correct(shared_, kept_[k], correction)) correction.clear();
    Vector gradient(model_.size());
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = client.curvature[i] * (model_[i] - client.centre[i]);
    Vector update = train(client, correction);
    Vector change(shared_.size());
    if (rule != nullptr) {
      rule->finish({settings_, client.steps, shared_, gradient}, update, change,
                   rule->keeps_vector() ? std::span(kept_[k]) : std::span<float>());
      if (rule->follows_sent()) rule->follow(update, kept_[k]);
    }
    const auto weight = static_cast<double>(strategy_->weight_of(client.examples));
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += weight * update[i];
    for (std::size_t i = 0; i < change.size(); ++i) shared_mean[i] += weight * change[i];
    weights += weight;
    steps += weight * effective_steps(settings_, client.steps);
  }
  known_.insert(who.begin(), who.end());
  double all = 0;
  for (const std::size_t k : known_)
    all += static_cast<double>(strategy_->weight_of(clients_[k].examples));
  const double before = std::exchange(population_, all);
  const RoundFacts facts{.round = ++round_,
                         .lr = settings_.lr,
                         .share = weights / all,
                         .regrouped = before > 0 ? before / all : 1,
                         .effective_steps = steps / weights};
  Vector step(model_.size());
  for (std::size_t i = 0; i < step.size(); ++i) step[i] = static_cast<float>(mean[i] / weights);
  const std::vector<std::span<float>> state(state_.begin(), state_.end());
  strategy_->step(facts, state, step);
  for (std::size_t i = 0; i < step.size(); ++i) model_[i] += step[i];
  for (std::size_t i = 0; i < shared_.size(); ++i)
    shared_[i] = static_cast<float>(strategy_->shared_keep(facts) * shared_[i] +
                                    strategy_->shared_step(facts) * shared_mean[i] / weights);
}

double Federation::distance(const Vector& point) const {
  double largest = 0;
  for (std::size_t i = 0; i < point.size(); ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(model_[i]) - point[i]));
  return largest;
}

}  // namespace fl::test
