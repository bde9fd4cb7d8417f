// SPDX-License-Identifier: Apache-2.0
#include "client/learn/synthetic_trainer.hpp"

#include "client/learn/blockwise_trainer.hpp"
#include "client/learn/data/random.hpp"
#include "kernels/kernels.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

namespace fl {

namespace {

constexpr std::size_t piece_elements = 1 << 20;  // Between two checks of the stop token.

class SyntheticTrainer final : public BlockwiseTrainer {
 public:
  SyntheticTrainer(Layout layout, std::uint64_t client_seed)
      : layout_(std::move(layout)), client_seed_(client_seed) {}

  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return synthetic_examples; }
  std::uint64_t holdout_examples() const override { return 0; }
  Abilities abilities() const override { return Abilities::all(); }
  Result<void> make_initial(std::uint64_t, ValueSink& out) const override {
    return write_zeros(out, {});
  }

  Result<TrainReport> train_blocks(const ValueSource& global, const TrainSettings& settings,
                                   const ValueSource*, ValueSink& update,
                                   std::stop_token stop) override {
    FL_ASSERT(global.elements() == layout_.elements());
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t seed = mix_seeds(settings.seed, client_seed_);
    std::vector<float> room;
    for (std::uint64_t first = 0; first < layout_.elements(); first += piece_elements) {
      if (stop.stop_requested()) {
        return Error(Errc::cancelled, fmt::format("round {}: training stopped", settings.round));
      }
      const std::size_t n = piece_at(first);
      const std::span<float> whole = update.whole();
      if (whole.empty()) room.resize(n);
      float* const out = whole.empty() ? room.data() : whole.data() + first;
      kernels().gaussian(seed, settings.round, first, out, n);
      if (whole.empty()) FL_CHECK(update.write(first, room));
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    return TrainReport{
        .examples = synthetic_examples, .steps = 1, .loss = 0, .seconds = taken.count()};
  }

  Result<void> write_gradient(const ValueSource&, const TrainSettings&, ValueSink& gradient,
                              std::stop_token stop) override {
    return write_zeros(gradient, stop);  // The loss is constant.
  }

  Result<EvalReport> evaluate_blocks(const ValueSource&, std::stop_token) override {
    return EvalReport{};
  }

 private:
  [[nodiscard]] std::size_t piece_at(std::uint64_t first) const {
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(piece_elements, layout_.elements() - first));
  }
  [[nodiscard]] Result<void> write_zeros(ValueSink& out, const std::stop_token& stop) const {
    const std::vector<float> zeros(piece_at(0));
    for (std::uint64_t first = 0; first < layout_.elements(); first += piece_elements) {
      if (stop.stop_requested()) return Error(Errc::cancelled, "stopped");
      FL_CHECK(out.write(first, std::span(zeros).first(piece_at(first))));
    }
    return {};
  }

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
