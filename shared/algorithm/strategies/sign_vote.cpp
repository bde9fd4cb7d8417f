// SPDX-License-Identifier: Apache-2.0
// signSGD with majority vote: Bernstein 2019, algorithm 1, with local updates instead of gradients.
// A client sends the signs of its update. The server steps by lr along the sign of their weighted
// sum: a vote has the client's examples as its weight, or 1 with weight=uniform. --codec sign
// sends a vote in one bit, which cannot say 0: a weight that a client does not move gets a random
// vote, and the votes of a block are scaled by the share of weights that moved. --codec
// terngrad,clip=0 sends the votes exactly.
#include "shared/algorithm/strategies/strategies.hpp"

namespace fl {

namespace {

float sign_of(float x) { return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F; }

class Voter final : public LocalRule {
 public:
  void finish(const LocalRound&, std::span<float> update, std::span<float>,
              std::span<float>) const override {
    for (float& value : update) value = sign_of(value);
  }
};

class SignVote final : public Strategy {
 public:
  explicit SignVote(double lr) : lr_(static_cast<float>(lr)) {}

  bool counts_signs() const override { return true; }
  const LocalRule* local() const override { return &local_; }
  void step(const RoundFacts&, std::span<const std::span<float>>,
            std::span<float> step) const override {
    for (float& value : step) value = lr_ * sign_of(value);
  }

 private:
  float lr_;
  Voter local_;
};

}  // namespace

std::shared_ptr<Strategy> make_signvote(SpecOptions& options) {
  return std::make_shared<SignVote>(options.number("lr", 1e-3, 1e-12, 1e6));
}

}  // namespace fl
