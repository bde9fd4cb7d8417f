// SPDX-License-Identifier: Apache-2.0
#include "client/learn/synthetic_trainer.hpp"

#include "client/learn/data/random.hpp"
#include "kernels/kernels.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t piece_elements = 1 << 20;  // Between two checks of the stop token.

class SyntheticTrainer final : public Trainer {
 public:
  SyntheticTrainer(Layout layout, std::uint64_t client_seed)
      : layout_(std::move(layout)), client_seed_(client_seed) {}

  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return synthetic_examples; }
  std::uint64_t holdout_examples() const override { return 0; }
  Abilities abilities() const override { return Abilities::all(); }
  Result<std::vector<float>> initial_weights(std::uint64_t) const override {
    return std::vector<float>(layout_.elements());
  }

  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float>, std::span<float> update,
                            std::stop_token stop) override {
    FL_ASSERT(global.size() == layout_.elements() && update.size() == layout_.elements());
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t seed = mix_seeds(settings.seed, client_seed_);
    for (std::size_t first = 0; first < update.size(); first += piece_elements) {
      if (stop.stop_requested()) {
        return Error(Errc::cancelled, fmt::format("round {}: training stopped", settings.round));
      }
      const std::size_t n = std::min(piece_elements, update.size() - first);
      kernels().gaussian(seed, settings.round, first, update.data() + first, n);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    return TrainReport{
        .examples = synthetic_examples, .steps = 1, .loss = 0, .seconds = taken.count()};
  }

  Result<void> gradient(std::span<const float>, const TrainSettings&, std::span<float> gradient,
                        std::stop_token) override {
    std::ranges::fill(gradient, 0.0F);  // The loss is constant.
    return {};
  }

  Result<EvalReport> evaluate(std::span<const float>, std::stop_token) override {
    return EvalReport{};
  }

 private:
  Layout layout_;
  std::uint64_t client_seed_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_synthetic_trainer(std::string_view model,
                                                        std::uint64_t client_seed) {
  FL_TRY(Layout layout, builtin_layout(model));
  return std::unique_ptr<Trainer>(
      std::make_unique<SyntheticTrainer>(std::move(layout), client_seed));
}

}  // namespace fl
