// SPDX-License-Identifier: Apache-2.0
// FedAdagrad, FedAdam and FedYogi: Reddi 2021, algorithm 2. As in the paper there is no bias
// correction, and the second moment starts at tau^2.
#include "shared/algorithm/strategies/strategies.hpp"

#include <cmath>

namespace fl {

namespace {

class Adaptive final : public Strategy {
 public:
  enum class Rule { adagrad, adam, yogi };
  struct Settings {
    Rule rule = Rule::adam;
    double lr = 0.1;
    double beta1 = 0.9;
    double beta2 = 0.99;
    double tau = 1e-3;
  };
  explicit Adaptive(const Settings& settings) : settings_(settings) {}

  unsigned state_vectors() const override { return 2; }
  float initial_state(unsigned vector) const override {
    return vector == 0 ? 0 : static_cast<float>(settings_.tau * settings_.tau);
  }
  void step(const RoundFacts&, std::span<const std::span<float>> state,
            std::span<float> step) const override {
    const auto lr = static_cast<float>(settings_.lr);
    const auto beta1 = static_cast<float>(settings_.beta1);
    const auto rest1 = static_cast<float>(1 - settings_.beta1);
    const auto tau = static_cast<float>(settings_.tau);
    for (std::size_t i = 0; i < step.size(); ++i) {
      const float d = step[i];
      float& m = state[0][i];
      float& v = state[1][i];
      m = beta1 * m + rest1 * d;
      v = second_moment(v, d * d);
      step[i] = lr * m / (std::sqrt(v) + tau);
    }
  }

 private:
  [[nodiscard]] float second_moment(float v, float square) const {
    const auto beta2 = static_cast<float>(settings_.beta2);
    const auto rest2 = static_cast<float>(1 - settings_.beta2);
    switch (settings_.rule) {
      case Rule::adagrad: return v + square;
      case Rule::adam: return beta2 * v + rest2 * square;
      case Rule::yogi: break;
    }
    const float towards = v > square ? 1.0F : v < square ? -1.0F : 0.0F;
    return v - rest2 * square * towards;
  }

  Settings settings_;
};

std::shared_ptr<Strategy> make_adaptive(SpecOptions& options, Adaptive::Rule rule) {
  Adaptive::Settings settings;
  settings.rule = rule;
  const bool is_adagrad = rule == Adaptive::Rule::adagrad;
  settings.lr = options.number("lr", settings.lr, 0, 1e6);
  settings.beta1 = options.number_below("beta1", is_adagrad ? 0 : settings.beta1, 0, 1);
  if (!is_adagrad) settings.beta2 = options.number_below("beta2", settings.beta2, 0, 1);
  settings.tau = options.number("tau", settings.tau, 1e-12, 1e6);
  return std::make_shared<Adaptive>(settings);
}

}  // namespace

std::shared_ptr<Strategy> make_fedadagrad(SpecOptions& options) {
  return make_adaptive(options, Adaptive::Rule::adagrad);
}
std::shared_ptr<Strategy> make_fedadam(SpecOptions& options) {
  return make_adaptive(options, Adaptive::Rule::adam);
}
std::shared_ptr<Strategy> make_fedyogi(SpecOptions& options) {
  return make_adaptive(options, Adaptive::Rule::yogi);
}

}  // namespace fl
