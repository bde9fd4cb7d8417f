// SPDX-License-Identifier: Apache-2.0
// Passes: how a model's forward and backward passes are taken, one after the other or in a pipeline
// with other ranks, for training and for evaluation. Only the files of fl_client_learn_torch
// include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/precision.hpp"
#include "client/learn/torch/experts.hpp"
#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/pass_group.hpp"
#include "client/learn/torch/pipeline.hpp"
#include "client/learn/torch/step_sync.hpp"
#include "client/learn/torch/torch_examples.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_task.hpp"
#include "client/learn/torch/units.hpp"
#include "shared/params/model_spec.hpp"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

namespace fl {

/// A pass forward and back over examples.
struct TrainingPass {
  Batch batch;
  double mean_share = 1;  // By which the mean loss of the batch counts; 0: for others' sake alone.
  /// The loss is the sum over the batch's predictions, by these in turn, which is that share of the
  /// mean; else the mean by the share.
  struct OfSum {
    double divisor = 1;
    double factor = 1;
  };
  std::optional<OfSum> of_sum = {};
};
struct TrainingPasses {
  std::int64_t count = 0;  // At least 1.
  /// The passes, from 0 to count - 1. A pipeline asks for each of them several times.
  std::function<TrainingPass(std::int64_t)> at;
  StepSync* together = nullptr;  // Not null: the ranks that take them.
  bool reduces = true;           // With ranks: the gradients become means (StepSync::backward()).
  bool is_low = false;           // In the number format of the plan; else in fp32.
  double scale = 1;              // By which losses are multiplied for fp16 (LossScale).
  std::stop_token stop = {};     // After a request some are not taken.
};

/// Forward passes of a model that is evaluated.
struct EvaluationPasses {
  struct Evaluated {
    Batch batch;
    bool counts = true;  // Else it is for others' sake alone.
  };
  std::int64_t count = 0;
  std::function<Evaluated(std::int64_t)> at;
  /// Gets the outputs of those that count, on the ranks that have them, with the targets of these.
  std::function<void(const torch::Tensor& outputs, const torch::Tensor& targets)> take;
  StepSync* together = nullptr;
  std::stop_token stop = {};
};

/// One thread, and that of a backward pass while it lasts.
class Passes {
 public:
  /// `low`: the number format of passes that are not in fp32.
  Passes(ModelSpec spec, Module module, const PassGroups& groups, NumberFormat low);
  /// From now on the module has these parameters, which must outlive the object's use.
  void train(HeldParameters& parameters) { parameters_ = &parameters; }

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const Module& module() const { return module_; }
  [[nodiscard]] Units& units() { return units_; }
  /// The measurements of the model's experts; null if it has none.
  [[nodiscard]] Routing* routing() { return routing_.get(); }
  [[nodiscard]] Measurement measurement() const;
  /// Whether all ranks take the same number of passes.
  [[nodiscard]] bool are_joint(const StepSync& together) const {
    return routing_ != nullptr || together.passes_are_joint();
  }

  /// Returns the outputs. If `is_training`, a BatchNorm uses the statistics of these inputs and
  /// updates its own; otherwise it uses its own. Throws UnfitBatch if a BatchNorm would see a
  /// single value, which has no variance.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& inputs, bool is_training);
  /// Adds the gradients of all losses, and returns their sum: of those of this rank's passes, with
  /// a pipeline's last stage. Throws UnfitBatch and SyncFailure.
  double take(const TrainingPasses& passes);
  void take(const EvaluationPasses& passes);

 private:
  /// A batch as far as this rank has it.
  struct OwnBatch : Batch {
    std::optional<double> predictions;  // Those of the whole batch, where this is a part of it.
  };
  [[nodiscard]] OwnBatch own_of(const Batch& whole) const;
  [[nodiscard]] OwnBatch begin(const TrainingPass& pass, const TrainingPasses& passes);
  [[nodiscard]] OwnBatch begin(const EvaluationPasses::Evaluated& evaluated);
  void begin_routing(const OwnBatch& batch, double weight, StepSync* together);
  [[nodiscard]] torch::Tensor loss_of_pass(const TrainingPass& pass, const OwnBatch& batch,
                                           const torch::Tensor& outputs) const;
  void set_training(bool is_training);
  template <class Compute>
  [[nodiscard]] torch::Tensor in_format_of(const TrainingPasses& passes,
                                           const torch::Tensor& inputs,
                                           const Compute& compute) const;
  double take_one(const TrainingPasses& passes, std::int64_t number);
  double take_staged(const TrainingPasses& passes);
  void take_staged(const EvaluationPasses& passes);
  [[nodiscard]] Pipeline::Model staged();

  const ModelSpec spec_;
  const Module module_;
  Units units_;
  const PassGroups groups_;
  const NumberFormat low_;
  const std::shared_ptr<Routing> routing_;  // Null: the model has no experts.
  HeldParameters* parameters_ = nullptr;
};

}  // namespace fl
