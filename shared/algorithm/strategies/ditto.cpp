// SPDX-License-Identifier: Apache-2.0
// Ditto: Li, Hu, Beirami, Smith 2021, "Fair and Robust Federated Learning Through Personalization",
// algorithm 1, with FedAvg as its G. A client trains the global model as usual. It also keeps its
// own model v (the kept vector), and continues to minimize its loss + lambda/2 |v - w_global|^2
// from round to round.
#include "shared/algorithm/strategies/strategies.hpp"

#include <fmt/format.h>

namespace fl {

namespace {

class DittoLocal final : public LocalRule {
 public:
  explicit DittoLocal(OwnModel own) : own_(own) {}

  bool keeps_vector() const override { return true; }
  const OwnModel* own_model() const override { return &own_; }
  void finish(const LocalRound&, std::span<float>, std::span<float>,
              std::span<float>) const override {}

 private:
  OwnModel own_;
};

class Ditto final : public Strategy {
 public:
  explicit Ditto(OwnModel own) : local_(own) {}

  Result<void> check(const TrainSettings&) const override {
    if (!has_personal()) return {};
    return Error(
        Errc::invalid_input,
        fmt::format("--strategy {}: remove personal=. A client's own model already has all "
                    "tensors",
                    spec()));
  }
  const LocalRule* local() const override { return &local_; }

 private:
  DittoLocal local_;
};

}  // namespace

std::shared_ptr<Strategy> make_ditto(SpecOptions& options) {
  const double lambda = options.number("lambda", 0.1, 0, 1e6);
  return std::make_shared<Ditto>(OwnModel{lambda, options.count("epochs", 1, 1)});
}

}  // namespace fl
