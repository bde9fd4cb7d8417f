// SPDX-License-Identifier: Apache-2.0
// A model whose training has a known result. Client k's loss is |w - c_k|^2 / 2, where c_k is its
// own point. Each step of gradient descent moves w by a part `lr` of the way to c_k, so the
// federation converges to the weighted mean of the points. A statistic moves 0.3 of the way in each
// step, whatever the settings and corrections are. The same weights and settings give the same
// bits.
#pragma once

#include "client/learn/trainer.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl::test {

/// The part of the problem that all clients of a world share.
struct ToyProblem {
  std::string model = "toy";
  Layout layout;
  std::uint64_t seed = 0;  // Seed of the clients' points.
  double noise = 0;        // Noise of an update, drawn from the task's seed, like a shuffle.

  /// Makes a model of about `parameters` parameters in three tensors, and one tensor of two
  /// statistics.
  static ToyProblem make(std::uint64_t parameters, std::uint64_t seed);
  /// Leaves the statistics out: a masked run has none.
  void drop_statistics();
  /// The point c_k; its values are in [-1, 1).
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
    double step_seconds = 0.1;  // Simulated; used if the settings have a time budget.
    /// Empty: the client trains on the CPU.
    std::function<std::unique_ptr<CodecDevice>()> make_device = {};
    /// The metrics besides the loss: of "accuracy", "perplexity", "distance" and "auroc".
    std::vector<std::string> metrics = {"accuracy"};
    /// The predictions of an example, in training and held out.
    std::optional<double> predictions = {};
  };
  /// Called with each trained update; may change it.
  using Record = std::function<void(const TrainSettings& settings, std::span<float> update)>;

  ToyTrainer(ToyProblem problem, Part part, Record record);

  /// The loss of weights for a client with this point: half the mean square of their distance.
  [[nodiscard]] static double loss_at(std::span<const float> weights, std::span<const float> point);
  /// The number of steps that training takes. An epoch is one step.
  [[nodiscard]] static std::uint64_t steps_of(const TrainSettings& settings, const Part& part);

  const Layout& layout() const override { return problem_.layout; }
  std::uint64_t train_examples() const override { return part_.examples; }
  std::uint64_t holdout_examples() const override { return part_.holdout; }
  std::span<const MetricKind> metrics() const override { return kinds_; }
  Abilities abilities() const override { return Abilities::all(); }
  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override;
  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override;
  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override;
  /// The kind of each metric that the part names. The accuracy is 1 at the client's point and falls
  /// with the distance from it. A perplexity weighs three tokens an example.
  [[nodiscard]] static std::vector<MetricKind> kinds_of(const Part& part);
  /// The metrics that evaluate() reports for weights with this loss.
  [[nodiscard]] static std::vector<MetricValue> values_of(const Part& part, double loss);
  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override;
  Result<std::unique_ptr<CodecDevice>> make_codec_device() override;
  const float* update_on_device() override;

 private:
  ToyProblem problem_;
  Part part_;
  std::vector<MetricKind> kinds_;
  Record record_;
  std::vector<float> point_;
  std::vector<float> on_device_;  // The update in the simulated device's memory.
};

}  // namespace fl::test
