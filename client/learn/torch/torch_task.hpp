// SPDX-License-Identifier: Apache-2.0
// What a model is trained for: the loss of its outputs, and what is measured of them. Only the
// files of fl_client_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/torch/pass_group.hpp"
#include "client/learn/torch/torch_examples.hpp"
#include "client/learn/trainer.hpp"
#include "shared/params/model_spec.hpp"

#include <torch/types.h>

#include <functional>
#include <utility>
#include <vector>

namespace fl {

/// The standard deviation, above 0 even where rounding has made a variance 0.
[[nodiscard]] torch::Tensor deviation_of(const torch::Tensor& variance);

/// Mean and variance of the targets of a regression, fp32 [outputs] each: views into the model's
/// weights. Undefined if the model does not scale its targets.
struct TargetScale {
  torch::Tensor mean;
  torch::Tensor variance;

  [[nodiscard]] torch::Tensor deviation() const { return deviation_of(variance); }
  /// Targets with mean 0 and variance 1, as the model predicts them.
  [[nodiscard]] torch::Tensor scaled(const torch::Tensor& targets) const;
};

/// The loss of a batch, a tensor without dimensions: cross-entropy, or the mean over a value's
/// outputs of squares or absolute differences, of scaled targets. at::Reduction::Mean: the mean
/// over the batch's predictions (Examples::predictions()); at::Reduction::Sum: their sum. `group`:
/// the ranks of which each has the outputs of a part of the vocabulary; may be null.
[[nodiscard]] torch::Tensor loss_of(const ModelSpec& spec, const TargetScale& scale,
                                    const torch::Tensor& outputs, const torch::Tensor& targets,
                                    at::Reduction::Reduction reduction, TensorGroup* group);

/// Adds up what is measured over batches. One thread.
class Measurement {
 public:
  Measurement(const ModelSpec& spec, TargetScale scale, const PassGroups& groups)
      : spec_(spec), scale_(std::move(scale)), groups_(groups) {}

  /// Adds a batch, or this rank's tokens of it if ranks have texts together.
  void add(const torch::Tensor& outputs, const torch::Tensor& targets);
  /// Adds up what `ranks` ranks have measured, so that each has all. `sum` adds up tensors of fp64
  /// over the ranks.
  using Sum = std::function<void(torch::Tensor&)>;
  void join(const Sum& sum, std::int64_t rank, std::int64_t ranks);
  /// The report on these examples, of which at least one was added. The metrics are those of
  /// builtin_metrics().
  [[nodiscard]] EvalReport report(const Examples& examples) const;

 private:
  void add_values(const torch::Tensor& outputs, const torch::Tensor& targets);
  [[nodiscard]] std::vector<MetricValue> value_metrics() const;

  const ModelSpec& spec_;
  TargetScale scale_;
  PassGroups groups_;
  double loss_ = 0;                             // Sum over the predictions.
  std::int64_t right_ = 0;                      // Classes that have the largest output.
  std::vector<std::pair<float, bool>> scores_;  // Of two classes: how much more 1 than 0, and is 1.
  double absolute_ = 0;                         // Sum of absolute errors, in the targets' unit.
  double squares_ = 0;                          // Sum of squared errors of scaled targets.
  torch::Tensor values_;                        // Sum of each scaled target: fp64 [outputs].
  double value_squares_ = 0;                    // Sum of their squares.
  std::int64_t examples_ = 0;
};

/// The area under the ROC curve: the probability that an example of class 1 has a higher score than
/// one of class 0, where equal scores count half (Mann, Whitney, 1947). NaN without both classes.
/// The weight is the number of such pairs.
[[nodiscard]] MetricValue auroc_of(std::vector<std::pair<float, bool>> scores);

}  // namespace fl
