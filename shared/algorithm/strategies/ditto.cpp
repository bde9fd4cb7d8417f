// Ditto: Li, Hu, Beirami, Smith 2021, "Fair and Robust Federated Learning Through Personalization",
// algorithm 1, with FedAvg for its G. Beside the global model, which it trains as ever, a client
// keeps a model v of its own (kept) and goes down the gradient of its loss + lambda/2 |v -
// w_global|^2 from round to round.
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
        fmt::format("--strategy {}: a client's own model has all tensors; personal= is for "
                    "other methods",
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
