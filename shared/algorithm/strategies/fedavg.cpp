// SPDX-License-Identifier: Apache-2.0
// FedAvg: McMahan 2017, algorithm 1, with the server learning rate of Reddi 2021, algorithm 1.
// FedProx: Li 2020, algorithm 2. The trainer adds the proximal term to its steps.
#include "shared/algorithm/strategies/strategies.hpp"

namespace fl {

namespace {

class FedAvg final : public Strategy {
 public:
  FedAvg(double lr, double mu) : lr_(static_cast<float>(lr)), mu_(mu) {}

  double proximal_mu() const override { return mu_; }
  void step(const RoundFacts&, std::span<const std::span<float>>,
            std::span<float> step) const override {
    if (lr_ == 1) return;
    for (float& value : step) value *= lr_;
  }

 private:
  float lr_;
  double mu_;
};

}  // namespace

std::shared_ptr<Strategy> make_fedavg(SpecOptions& options) {
  return std::make_shared<FedAvg>(options.number("lr", 1, 0, 1e6), 0);
}

std::shared_ptr<Strategy> make_fedprox(SpecOptions& options) {
  const double mu = options.number("mu", 0.01, 0, 1e6);
  return std::make_shared<FedAvg>(options.number("lr", 1, 0, 1e6), mu);
}

}  // namespace fl
