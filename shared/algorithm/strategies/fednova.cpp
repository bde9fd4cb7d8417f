// SPDX-License-Identifier: Apache-2.0
// FedNova: Wang 2020, section 4.2, equation 11. A client divides its update by its effective steps,
// and the server multiplies the mean update by the mean of the effective steps. So a client that
// does more steps does not pull the model harder towards its own optimum. Section 4.1 defines the
// effective steps, also for momentum and for the proximal term (mu).
#include "shared/algorithm/strategies/strategies.hpp"

namespace fl {

namespace {

class FedNovaLocal final : public LocalRule {
 public:
  void finish(const LocalRound& round, std::span<float> update, std::span<float>,
              std::span<float>) const override {
    const auto scale = static_cast<float>(1 / effective_steps(round.settings, round.steps));
    for (float& value : update) value *= scale;
  }
};

class FedNova final : public Strategy {
 public:
  FedNova(double lr, double mu) : lr_(lr), mu_(mu) {}

  bool counts_steps() const override { return true; }
  double proximal_mu() const override { return mu_; }
  const LocalRule* local() const override { return &local_; }
  void step(const RoundFacts& facts, std::span<const std::span<float>>,
            std::span<float> step) const override {
    const auto scale = static_cast<float>(lr_ * facts.effective_steps);
    for (float& value : step) value *= scale;
  }

 private:
  double lr_;
  double mu_;
  FedNovaLocal local_;
};

}  // namespace

std::shared_ptr<Strategy> make_fednova(SpecOptions& options) {
  const double lr = options.number("lr", 1, 0, 1e6);
  return std::make_shared<FedNova>(lr, options.number("mu", 0, 0, 1e6));
}

}  // namespace fl
