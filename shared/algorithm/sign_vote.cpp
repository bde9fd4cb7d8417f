// signSGD with majority vote: Bernstein 2019, algorithm 1, with local updates in the place of
// gradients. A client sends the signs of its update, which --codec sign carries exactly in one bit
// each; the server steps by lr along the sign of their sum. A client's vote counts by its examples,
// or with weight=uniform as one.
#include "shared/algorithm/strategies.hpp"

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
