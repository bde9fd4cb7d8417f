// A model whose training is understood: client k wants the weights to be its own point c_k, each
// step of gradient descent on |w - c_k|^2 / 2 goes a part `lr` of the way there, and so the
// federation goes to the weighted mean of the points. What it has of statistics goes 0.3 of the
// way in each step, whatever the settings and corrections are. The same bits for the same weights
// and settings.
#pragma once

#include "client/learn/trainer.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fl::test {

/// What all clients of a world have in common.
struct ToyProblem {
  std::string model = "toy";
  Layout layout;
  std::uint64_t seed = 0;  // Of the clients' points.
  double noise = 0;        // Of an update, drawn with the task's seed: as a shuffle would.

  /// About `parameters` of them, in three tensors, and two statistics in one.
  static ToyProblem make(std::uint64_t parameters, std::uint64_t seed);
  /// c_k, values in [-1, 1).
  [[nodiscard]] std::vector<float> point(std::uint32_t client) const;
  /// The run's version 0 for `run_seed`.
  [[nodiscard]] std::vector<float> initial_weights(std::uint64_t run_seed) const;
};

class ToyTrainer final : public Trainer {
 public:
  struct Part {
    std::uint32_t client = 0;
    std::uint64_t examples = 0;
    std::uint64_t holdout = 0;
    double step_seconds = 0.1;  // What a step takes there, where the settings give a time.
    /// Empty: it trains on the CPU.
    std::function<std::unique_ptr<CodecDevice>()> make_device = {};
  };
  /// Told of every update made; may change it.
  using Record = std::function<void(const TrainSettings& settings, std::span<float> update)>;

  ToyTrainer(ToyProblem problem, Part part, Record record);

  /// How many steps it takes; an epoch is one.
  [[nodiscard]] static std::uint64_t steps_of(const TrainSettings& settings, const Part& part);

  const Layout& layout() const override { return problem_.layout; }
  std::uint64_t train_examples() const override { return part_.examples; }
  std::uint64_t holdout_examples() const override { return part_.holdout; }
  std::vector<float> initial_weights(std::uint64_t seed) const override;
  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override;
  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override;
  /// The accuracy is 1 at the client's point and falls with the distance from it.
  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override;
  Result<std::unique_ptr<CodecDevice>> make_codec_device() override;
  const float* update_on_device() override;

 private:
  [[nodiscard]] double loss_at(std::span<const float> weights) const;

  ToyProblem problem_;
  Part part_;
  Record record_;
  std::vector<float> point_;
  std::vector<float> on_device_;  // What the device's memory has of an update.
};

}  // namespace fl::test
