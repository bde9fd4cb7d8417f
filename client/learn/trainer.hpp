// SPDX-License-Identifier: Apache-2.0
// Trainer: the interface between a client and a model. It trains on the local data, evaluates, and
// makes initial weights. A Trainer has one model and one data set. Weights and updates are flat
// fp32 vectors in the order of layout(). One thread at a time (the agent's worker). This header
// includes nothing of libtorch.
#pragma once

#include "kernels/codec_device.hpp"
#include "shared/algorithm/local_work.hpp"
#include "shared/base/error.hpp"
#include "shared/params/column_summary.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/metric.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace fl {

struct TrainReport {
  std::uint64_t examples = 0;  // Number of local training examples: the update's FedAvg weight.
  std::uint64_t steps = 0;     // Optimizer steps taken.
  double loss = 0.0;           // Mean training loss over all examples seen.
  double seconds = 0.0;        // Wall-clock time of the training.
};

struct EvalReport {
  std::uint64_t examples = 0;
  double loss = 0.0;                      // Mean over the examples.
  std::vector<MetricValue> metrics = {};  // Trainer::metrics() declares them; each at most once.
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  [[nodiscard]] virtual const Layout& layout() const = 0;
  /// The number of examples in the training part and in the held-out part of the data.
  [[nodiscard]] virtual std::uint64_t train_examples() const = 0;
  [[nodiscard]] virtual std::uint64_t holdout_examples() const = 0;
  /// The metrics that evaluate() measures besides the loss, always the same; the main one first.
  /// check_metrics() must accept it.
  [[nodiscard]] virtual std::span<const MetricKind> metrics() const { return {}; }
  /// Summaries of the values that the model scales (builtin_summaries()), in their order, over the
  /// training examples. The server makes the model's means and variances of all clients'.
  [[nodiscard]] virtual std::vector<ColumnSummary> summaries() const { return {}; }
  /// Returns layout().elements() values. The same built-in model and seed give the same bits on
  /// every machine. Errors: invalid_input, if a trainer that is a program of the user's can't.
  [[nodiscard]] virtual Result<std::vector<float>> initial_weights(std::uint64_t seed) const = 0;

  /// Trains from the weights `global` on and writes the difference, w_local - w_global, to
  /// `update`. Both have layout().elements() values. `correction` has as many values or none. It is
  /// added to the gradient in every step; its values for statistics (shared/params/layout.hpp),
  /// which have no gradient, are ignored. Errors: cancelled after a request through `stop`;
  /// invalid_input for a loss that is not finite, with the step.
  [[nodiscard]] virtual Result<TrainReport> train(std::span<const float> global,
                                                  const TrainSettings& settings,
                                                  std::span<const float> correction,
                                                  std::span<float> update,
                                                  std::stop_token stop) = 0;
  /// Writes the gradient of the mean loss over all training examples, plus weight_decay * weights.
  /// `weights` and `gradient` have layout().elements() values. Statistics get zeros.
  [[nodiscard]] virtual Result<void> gradient(std::span<const float> weights,
                                              const TrainSettings& settings,
                                              std::span<float> gradient, std::stop_token stop) = 0;
  /// Evaluates on the held-out part (all data, if the client only evaluates). Without such data the
  /// report has 0 examples.
  [[nodiscard]] virtual Result<EvalReport> evaluate(std::span<const float> weights,
                                                    std::stop_token stop) = 0;

  /// The abilities of a trainer besides training in its own way. A built-in one has all.
  struct Abilities {
    bool optimizer = true;   // Trains with the settings' optimizer and steps, and counts its steps.
    bool proximal = true;    // Follows TrainSettings::proximal_mu.
    bool correction = true;  // Adds the correction.
    bool gradient = true;    // Has gradient().
    bool initial = true;     // Has initial_weights() of every model.
  };
  [[nodiscard]] virtual Abilities abilities() const { return {}; }
  /// Called before the first work for a run, with its key.
  virtual void enter_run([[maybe_unused]] const std::string& run_key) {}

  /// Whether several threads take steps on the same weights at the same time (Hogwild). Then the
  /// number of steps does not say how far the weights have moved.
  [[nodiscard]] virtual bool takes_steps_together() const { return false; }

  /// Makes a CodecDevice on the device that trains; null if that is the CPU. `unavailable`: the
  /// device has no memory left for it.
  [[nodiscard]] virtual Result<std::unique_ptr<CodecDevice>> make_codec_device() {
    return std::unique_ptr<CodecDevice>();
  }
  /// The last update in the device's memory; null on the CPU, or if the last call was not train().
  /// Valid until the next call.
  [[nodiscard]] virtual const float* update_on_device() { return nullptr; }
};

}  // namespace fl
