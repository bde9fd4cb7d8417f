// SPDX-License-Identifier: Apache-2.0
// SCAFFOLD: Karimireddy 2020, algorithm 1. The server's control variate c travels with the model.
// Client i keeps its own, c_i, and adds c - c_i to every local gradient. After training
//   option 1: c_i' = gradient of the local loss at the global model,
//   option 2: c_i' = c_i - c + (w - w_i) / (lr K).
// It sends c_i' - c_i together with w_i - w. The server computes w += lr_g mean(w_i - w) and
// c += (share of the clients that took part) mean(c_i' - c_i).
//
// Three things differ from the paper:
// - K is replaced by the effective steps (local_work.hpp). (w - w_i) / (lr K) should be the mean of
//   the corrected gradients, and for plain SGD it is. With momentum rho a gradient moves the
//   weights by up to 1 / (1 - rho) times as much. Control variates would be too long by that
//   factor, and training with momentum 0.9 would collapse.
// - Means have the weights of the updates, by examples unless weight=uniform. So c stays the
//   weighted mean of the c_i, and the corrections c - c_i cancel in the objective.
// - Clients may join later; the paper knows all of them from the start. Then c is a mean over more
//   clients, so it shrinks (RoundFacts::regrouped). Otherwise every later gradient would have a
//   constant error.
#include "shared/algorithm/strategies/strategies.hpp"

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

class ScaffoldLocal final : public LocalRule {
 public:
  explicit ScaffoldLocal(bool takes_gradient) : takes_gradient_(takes_gradient) {}

  bool keeps_vector() const override { return true; }
  bool wants_gradient() const override { return takes_gradient_; }
  bool correct(std::span<const float> shared, std::span<const float> kept,
               std::span<float> correction) const override {
    for (std::size_t i = 0; i < correction.size(); ++i) correction[i] = shared[i] - kept[i];
    return true;
  }
  void finish(const LocalRound& round, std::span<float> update, std::span<float> shared_change,
              std::span<float> kept) const override {
    const double steps = effective_steps(round.settings, round.steps);
    const auto scale = static_cast<float>(1 / (round.settings.lr * steps));
    if (!takes_gradient_ &&
        !std::isfinite(
            scale)) {  // The rate is nearly 0, so the update says nothing about gradients.
      std::ranges::fill(shared_change, 0.0F);
      return;
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const float next =
          takes_gradient_ ? round.gradient[i] : kept[i] - round.shared[i] - update[i] * scale;
      shared_change[i] = next - kept[i];
      kept[i] = next;
    }
  }

 private:
  bool takes_gradient_;
};

class Scaffold final : public Strategy {
 public:
  Scaffold(double lr, bool takes_gradient) : lr_(static_cast<float>(lr)), local_(takes_gradient) {}

  bool counts_steps() const override { return true; }
  const LocalRule* local() const override { return &local_; }
  std::string_view shared_vector() const override { return "control"; }
  double shared_step(const RoundFacts& facts) const override { return facts.share; }
  double shared_keep(const RoundFacts& facts) const override { return facts.regrouped; }
  void step(const RoundFacts&, std::span<const std::span<float>>,
            std::span<float> step) const override {
    for (float& value : step) value *= lr_;
  }

 private:
  float lr_;
  ScaffoldLocal local_;
};

}  // namespace

std::shared_ptr<Strategy> make_scaffold(SpecOptions& options) {
  const double lr = options.number("lr", 1, 0, 1e6);
  return std::make_shared<Scaffold>(lr, options.word("option", {"2", "1"}) == "1");
}

}  // namespace fl
