// SPDX-License-Identifier: Apache-2.0
// Trainer: the interface between a client and a model. Derive from it to train a model of your own
// in C++ (client/client_main.hpp, examples/custom-trainer). A Trainer has one model and one data
// set.
//
// Weights, updates and gradients are flat fp32 vectors: the tensors' values one after the other,
// each tensor in row-major order, as layout() lists them.
//
// All calls come from one thread at a time and may block for as long as the work takes; meanwhile
// other threads of the client talk with the server. A Trainer may use threads of its own. An error
// of the code invalid_input means that this piece of work failed: the server hears why, asks
// another client, and may ask this one again in the next round. Any other error ends the client.
#pragma once

#include "client/learn/values.hpp"
#include "kernels/codec_device.hpp"
#include "shared/algorithm/local_work.hpp"
#include "shared/base/error.hpp"
#include "shared/params/column_summary.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/metric.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace fl {

/// How the ranks of a site spent a training, as its first rank saw it. In seconds; the first two
/// add up to about the training's time.
struct SyncTimes {
  std::uint32_t ranks = 0;  // 0: one process trained, and the others are 0.
  double compute = 0;       // Forward and backward passes and steps of the optimizer.
  double exposed = 0;       // Waiting for other ranks: for gradients, parameters, or in a pass.
  double hidden = 0;        // Reducing gradients while the backward pass went on.
  double coding = 0;  // The hook's own work, outside of collectives. A part of the two before.
};

/// Steps of a training with an adaptive precision (client/learn/precision.hpp).
struct FallBacks {
  std::uint64_t fp32_steps = 0;  // Taken in fp32.
  std::uint64_t overflows = 0;   // Those among them that were taken again after an overflow.
  std::uint64_t odd_norms = 0;   // Not in fp32, but the reason that the next ones are.

  FallBacks& operator+=(const FallBacks& more) {
    fp32_steps += more.fp32_steps;
    overflows += more.overflows;
    odd_norms += more.odd_norms;
    return *this;
  }
};

struct TrainReport {
  std::uint64_t examples = 0;  // Number of local training examples: the update's FedAvg weight.
  std::uint64_t steps = 0;     // Optimizer steps taken.
  double loss = 0.0;           // Mean training loss over all predictions made.
  double seconds = 0.0;        // Wall-clock time of the training.
  /// What went wrong and was mended, such as a rank that was lost: for the server's history, a
  /// sentence each, at most limits::upload_notes_max.
  std::vector<std::string> notes = {};
  SyncTimes sync = {};
  FallBacks fall_backs = {};
  /// How many predictions the training examples have: the loss counts with it beside other clients'
  /// losses. Nothing: one for each example. 0: the loss does not count.
  std::optional<double> predictions = {};
  /// How it was trained as far as that changes bits or cost, in words: "cpu, bf16, 4 ranks, zero
  /// 3". At most limits::setup_bytes_max; "": the trainer does not say.
  std::string setup = {};
};

struct EvalReport {
  std::uint64_t examples = 0;
  double loss = 0.0;                       // Mean over the predictions.
  std::vector<MetricValue> metrics = {};   // Trainer::metrics() declares them; each at most once.
  std::optional<double> predictions = {};  // As in TrainReport: how many the examples have.
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  /// The model's tensors. It must not change, and the reference must stay valid. A model that is
  /// not built in (`custom:NAME`) has its parameters first, sorted by name, then its statistics
  /// (is_statistic()), sorted by name.
  [[nodiscard]] virtual const Layout& layout() const = 0;
  /// The number of examples in the training part and in the held-out part of the data.
  [[nodiscard]] virtual std::uint64_t train_examples() const = 0;
  [[nodiscard]] virtual std::uint64_t holdout_examples() const { return 0; }
  /// The metrics that evaluate() measures besides the loss, always the same; the main one first.
  /// check_metrics() must accept it.
  [[nodiscard]] virtual std::span<const MetricKind> metrics() const { return {}; }
  /// Summaries of the values that the model scales (builtin_summaries()), in their order, over the
  /// training examples. The server makes the model's means and variances of all clients'.
  [[nodiscard]] virtual std::vector<ColumnSummary> summaries() const { return {}; }
  /// Returns layout().elements() values. The same built-in model and seed give the same bits on
  /// every machine. Errors: invalid_input, if a trainer that is not built in can't.
  [[nodiscard]] virtual Result<std::vector<float>> initial_weights(
      [[maybe_unused]] std::uint64_t seed) const {
    return Error(Errc::invalid_input, "this trainer makes no initial weights");
  }

  /// Trains from the weights `global` on and writes the difference, w_local - w_global, to
  /// `update`. Both have layout().elements() values. `correction` has as many values or none. It is
  /// added to the gradient in every step; its values for statistics (shared/params/layout.hpp),
  /// which have no gradient, are ignored. The same arguments should give the same bits, so that an
  /// update which is lost in a crash can be made again. Errors: cancelled after a request through
  /// `stop`, which should be heard within a second; invalid_input for a loss that is not finite,
  /// with the step.
  [[nodiscard]] virtual Result<TrainReport> train(std::span<const float> global,
                                                  const TrainSettings& settings,
                                                  std::span<const float> correction,
                                                  std::span<float> update,
                                                  std::stop_token stop) = 0;
  /// Writes the gradient of the mean loss over all training examples, plus weight_decay * weights.
  /// `weights` and `gradient` have layout().elements() values. Statistics get zeros.
  [[nodiscard]] virtual Result<void> gradient([[maybe_unused]] std::span<const float> weights,
                                              [[maybe_unused]] const TrainSettings& settings,
                                              [[maybe_unused]] std::span<float> gradient,
                                              [[maybe_unused]] std::stop_token stop) {
    return Error(Errc::invalid_input, "this trainer computes no gradient of all its data");
  }
  /// Evaluates on the held-out part (all data, if the client only evaluates). Without such data the
  /// report has 0 examples.
  [[nodiscard]] virtual Result<EvalReport> evaluate([[maybe_unused]] std::span<const float> weights,
                                                    [[maybe_unused]] std::stop_token stop) {
    return EvalReport{};
  }

  /// What a trainer can do besides training in its own way. A federated method that needs more
  /// than that refuses the trainer.
  struct Abilities {
    bool optimizer = false;  // Trains with the settings' optimizer and steps, and counts its steps.
    bool proximal = false;   // Follows TrainSettings::proximal_mu.
    bool correction = false;  // Adds the correction.
    bool gradient = false;    // Has gradient().
    bool initial = false;     // Has initial_weights().
    bool clip_norm = false;   // Follows TrainSettings::clip_norm.

    [[nodiscard]] static Abilities all() { return {true, true, true, true, true, true}; }
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

  // The client calls these four. They do the same in stretches, for models that are larger than the
  // memory, and by default call the functions above with whole vectors. A trainer that overrides
  // them is a BlockwiseTrainer (client/learn/blockwise_trainer.hpp).

  /// Writes what initial_weights() returns.
  [[nodiscard]] virtual Result<void> make_initial(std::uint64_t seed, ValueSink& out) const {
    FL_TRY(const auto weights, initial_weights(seed));
    if (weights.size() != layout().elements()) {
      return Error(Errc::invalid_input, "the trainer made " + std::to_string(weights.size()) +
                                            " initial weights for a model of " +
                                            std::to_string(layout().elements()));
    }
    return out.write(0, weights);
  }
  /// As train(). Without a correction, `correction` is null. Errors also: those of the vectors.
  [[nodiscard]] virtual Result<TrainReport> train_blocks(const ValueSource& global,
                                                         const TrainSettings& settings,
                                                         const ValueSource* correction,
                                                         ValueSink& update, std::stop_token stop) {
    std::vector<float> weights_room;
    std::vector<float> correction_room;
    std::vector<float> update_room;
    FL_TRY(const auto weights, whole_of(global, weights_room));
    std::span<const float> added;
    if (correction != nullptr) {
      FL_TRY(added, whole_of(*correction, correction_room));
    }
    return fill_whole(update, global.elements(), update_room, [&](std::span<float> out) {
      return train(weights, settings, added, out, stop);
    });
  }
  [[nodiscard]] virtual Result<void> write_gradient(const ValueSource& weights,
                                                    const TrainSettings& settings, ValueSink& out,
                                                    std::stop_token stop) {
    std::vector<float> weights_room;
    std::vector<float> room;
    FL_TRY(const auto values, whole_of(weights, weights_room));
    return fill_whole(out, weights.elements(), room,
                      [&](std::span<float> all) { return gradient(values, settings, all, stop); });
  }
  [[nodiscard]] virtual Result<EvalReport> evaluate_blocks(const ValueSource& weights,
                                                           std::stop_token stop) {
    std::vector<float> room;
    FL_TRY(const auto values, whole_of(weights, room));
    return evaluate(values, std::move(stop));
  }
};

/// Makes the trainer for a model of the server's, such as "custom:houses". Called on the thread
/// that later calls the trainer, once for each model in a row. `model` is "" if the trainer is to
/// make initial weights. Errors: invalid_input, if it can't train this model.
using TrainerFactory = std::function<Result<std::unique_ptr<Trainer>>(const std::string& model)>;

}  // namespace fl
