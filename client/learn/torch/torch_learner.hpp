// SPDX-License-Identifier: Apache-2.0
// Mini-batch SGD of one thread, on weights that other threads may train at the same time. Only the
// files of fl_client_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/precision.hpp"
#include "client/learn/torch/experts.hpp"
#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/kept_moments.hpp"
#include "client/learn/torch/loss_scale.hpp"
#include "client/learn/torch/step_sync.hpp"
#include "client/learn/torch/torch_examples.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_task.hpp"
#include "client/learn/torch/units.hpp"
#include "client/learn/trainer.hpp"
#include "shared/base/async/clock.hpp"

#include <atomic>
#include <memory>
#include <optional>

namespace fl {

/// The number of examples of an optimizer step of so many ranks together. The last step of an epoch
/// may have fewer.
[[nodiscard]] std::int64_t step_examples(const TrainSettings& settings, std::int64_t examples,
                                         std::int64_t ranks = 1);

/// The training of one round, shared by all its threads.
struct LocalRun {
  const TrainSettings& settings;
  // These two have a value for each parameter that this process steps (HeldParameters::stepped()):
  torch::Tensor start;            // Their values at the beginning.
  torch::Tensor correction = {};  // Added to every gradient; may be undefined.
  std::uint64_t seed = 0;         // Determines the order of the examples.
  std::uint64_t steps = 0;        // The number of steps of all threads together.
  TimePoint end = never;          // No step begins after this time, except the first one.
  std::stop_token stop = {};
  Moments* moments = nullptr;    // Not null: the first thread's optimizer goes on with them.
  StepSync* together = nullptr;  // Not null: other ranks take the same steps, one thread each.
  std::atomic<std::uint64_t> begun = 0;  // Steps that were begun.
};

/// One thread's part of it.
struct LocalShare {
  std::uint64_t steps = 0;
  std::uint64_t predictions = 0;
  double loss_sum = 0;  // Over these predictions.
  FallBacks fall_backs = {};
};

/// A batch as far as this rank has it.
struct OwnBatch : Batch {
  std::optional<double> predictions;  // Those of the whole batch, where this is a part of it.
};

class Learner {
 public:
  struct Options {
    PrecisionPlan precision = {};
    bool recomputes = false;        // Units::recompute().
    StepSync* together = nullptr;   // Not null: the ranks that have the parameters.
    const Learner* twin = nullptr;  // Not null: both share their weights.
  };
  /// Errors: those of make_module(); invalid_input for a pattern that fits no layer.
  [[nodiscard]] static Result<Learner> make(std::string_view model, torch::Device device,
                                            const Options& options);

  /// Takes steps until the run has enough. Optimizer (without LocalRun::moments) and loss scale
  /// start from their initial state.
  /// `number` is the number of the thread, from 0. Errors, with round and step: cancelled;
  /// invalid_input for a loss that is not finite or a gradient that does not fit into fp16.
  [[nodiscard]] Result<LocalShare> train(LocalRun& run, const Examples& examples,
                                         std::uint64_t number);

  [[nodiscard]] HeldParameters& parameters() { return *parameters_; }
  /// The module's parameters, in the layout's order.
  [[nodiscard]] const std::vector<torch::Tensor>& trained() const { return trained_; }
  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  /// Returns the outputs. If `is_training`, a BatchNorm uses the statistics of these inputs and
  /// updates its own; otherwise it uses its own. Throws UnfitBatch if a BatchNorm would see a
  /// single value, which has no variance.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& inputs, bool is_training);
  /// Takes this rank's tokens of a batch, if it has texts together with others; else all of it.
  [[nodiscard]] OwnBatch own_of(Batch whole) const;
  /// Call before the forward pass of a model that may have experts. `weight`: by which the mean
  /// loss of the whole batch is multiplied before the backward pass; 0 if others need the pass
  /// alone. `together`: the ranks that take the pass with this one; may be null.
  void begin_pass(const OwnBatch& batch, double weight, StepSync* together);
  /// The measurements of the model's experts; null if it has none.
  [[nodiscard]] Routing* routing() { return routing_.get(); }
  /// Whether all ranks make the same passes.
  [[nodiscard]] bool passes_are_joint(const StepSync& together) const {
    return routing_ != nullptr || together.passes_are_joint();
  }
  /// loss_of() this learner's outputs.
  [[nodiscard]] torch::Tensor loss(const torch::Tensor& outputs, const torch::Tensor& targets,
                                   at::Reduction::Reduction reduction) const {
    return loss_of(spec_, parameters_->target(), outputs, targets, reduction, groups_.tensor);
  }
  [[nodiscard]] Measurement measurement() const { return {spec_, parameters_->target(), groups_}; }

 private:
  Learner(ModelSpec spec, Module module, const Layout& layout, torch::Device device,
          const Options& options);

  struct Formats;
  [[nodiscard]] Result<std::optional<double>> take_gradient(const LocalRun& run,
                                                            const Examples& examples,
                                                            const torch::Tensor& batch,
                                                            Formats& formats, LocalShare& done);
  double add_gradient(const LocalRun& run, const Examples& examples, const torch::Tensor& batch,
                      const Formats& formats, bool is_low);
  double add_part(const LocalRun& run, const Examples& examples, const torch::Tensor& part,
                  double share, const Formats& formats, bool is_low, bool is_last);
  [[nodiscard]] bool has_time(const LocalRun& run) const;
  [[nodiscard]] bool is_scaled(bool is_low) const {
    return is_low && precision_.has(NumberFormat::fp16);
  }

  ModelSpec spec_;
  Module module_;
  std::vector<torch::Tensor> trained_;
  std::unique_ptr<Units> units_;
  std::unique_ptr<HeldParameters> parameters_;
  PrecisionPlan precision_;
  PassGroups groups_;
  std::shared_ptr<Routing> routing_;  // Null: the model has no experts.
};

}  // namespace fl
