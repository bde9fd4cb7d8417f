// SPDX-License-Identifier: Apache-2.0
// Momentum on the server. The mean update d stands for the negative gradient.
//   FedAvgM: Hsu 2019, section 4.3: v = beta v + d, w = w + lr v.
//   SlowMo: Wang 2020 (SlowMo), algorithm 1, lines 5 and 6. Its buffer is in units of the clients'
//   learning rate g: u = beta u + d / g, w = w + lr g u.
//   DiLoCo: Douillard 2023, algorithm 1, with Nesterov's momentum as in PyTorch:
//   v = beta v + d, w = w + lr (d + beta v).
#include "shared/algorithm/strategies/strategies.hpp"

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

class ServerMomentum final : public Strategy {
 public:
  struct Settings {
    double lr = 1;
    double momentum = 0.9;
    bool is_nesterov = false;
    bool is_by_lr = false;  // The buffer holds values divided by the clients' learning rate.
  };
  explicit ServerMomentum(const Settings& settings) : settings_(settings) {}

  unsigned state_vectors() const override { return 1; }
  void step(const RoundFacts& facts, std::span<const std::span<float>> state,
            std::span<float> step) const override {
    const double unit = settings_.is_by_lr ? facts.lr : 1;
    const auto scale = static_cast<float>(1 / unit);
    if (!std::isfinite(scale)) {  // The rate is nearly 0, so no client moves.
      std::ranges::fill(step, 0.0F);
      return;
    }
    const auto lr = static_cast<float>(settings_.lr * unit);
    const auto beta = static_cast<float>(settings_.momentum);
    for (std::size_t i = 0; i < step.size(); ++i) {
      const float d = step[i] * scale;
      float& v = state[0][i];
      v = beta * v + d;
      step[i] = lr * (settings_.is_nesterov ? d + beta * v : v);
    }
  }

 private:
  Settings settings_;
};

}  // namespace

std::shared_ptr<Strategy> make_fedavgm(SpecOptions& options) {
  ServerMomentum::Settings settings;
  settings.lr = options.number("lr", 1, 0, 1e6);
  settings.momentum = options.number_below("momentum", 0.9, 0, 1);
  settings.is_nesterov = options.word("nesterov", {"no", "yes"}) == "yes";
  return std::make_shared<ServerMomentum>(settings);
}

std::shared_ptr<Strategy> make_slowmo(SpecOptions& options) {
  ServerMomentum::Settings settings;
  settings.lr = options.number("lr", 1, 0, 1e6);
  settings.momentum = options.number_below("momentum", 0.5, 0, 1);
  settings.is_by_lr = true;
  return std::make_shared<ServerMomentum>(settings);
}

std::shared_ptr<Strategy> make_diloco(SpecOptions& options) {
  ServerMomentum::Settings settings;
  settings.lr = options.number("lr", 0.7, 0, 1e6);
  settings.momentum = options.number_below("momentum", 0.9, 0, 1);
  settings.is_nesterov = true;
  return std::make_shared<ServerMomentum>(settings);
}

}  // namespace fl
