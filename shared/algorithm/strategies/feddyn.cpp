// SPDX-License-Identifier: Apache-2.0
// FedDyn: Acar 2021, algorithm 1. Client k minimizes its loss - <l_k, w> + alpha/2 |w -
// w_global|^2. Then its kept vector l_k becomes l_k - alpha (w_k - w_global). The server computes
//   h' = h - alpha (share of the clients that took part) mean(w_k - w_global),
//   w' = mean(w_k) - h' / alpha.
// The paper weights all clients equally, as weight=uniform does. Weights by examples give the same
// method for the objective with those weights. h is the mean of the l_k over all clients. If
// clients join later, h shrinks, because the mean then has more terms (RoundFacts::regrouped).
#include "shared/algorithm/strategies/strategies.hpp"

namespace fl {

namespace {

class FedDynLocal final : public LocalRule {
 public:
  explicit FedDynLocal(double alpha) : alpha_(static_cast<float>(alpha)) {}

  bool keeps_vector() const override { return true; }
  bool correct(std::span<const float>, std::span<const float> kept,
               std::span<float> correction) const override {
    for (std::size_t i = 0; i < correction.size(); ++i) correction[i] = -kept[i];
    return true;
  }
  void finish(const LocalRound&, std::span<float>, std::span<float>,
              std::span<float>) const override {}
  bool follows_sent() const override { return true; }
  void follow(std::span<const float> sent, std::span<float> kept) const override {
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] -= alpha_ * sent[i];
  }

 private:
  float alpha_;
};

class FedDyn final : public Strategy {
 public:
  explicit FedDyn(double alpha) : alpha_(alpha), local_(alpha) {}

  double proximal_mu() const override { return alpha_; }
  const LocalRule* local() const override { return &local_; }
  unsigned state_vectors() const override { return 1; }
  void step(const RoundFacts& facts, std::span<const std::span<float>> state,
            std::span<float> step) const override {
    const auto part = static_cast<float>(alpha_ * facts.share);
    const auto keep = static_cast<float>(facts.regrouped);
    const auto inverse = static_cast<float>(1 / alpha_);
    for (std::size_t i = 0; i < step.size(); ++i) {
      float& h = state[0][i];
      h = keep * h - part * step[i];
      step[i] -= h * inverse;
    }
  }

 private:
  double alpha_;
  FedDynLocal local_;
};

}  // namespace

std::shared_ptr<Strategy> make_feddyn(SpecOptions& options) {
  return std::make_shared<FedDyn>(options.number("alpha", 0.01, 1e-6, 1e6));
}

}  // namespace fl
