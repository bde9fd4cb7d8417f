// SPDX-License-Identifier: Apache-2.0
// Pipeline: the passes of a rank that has some stages of a model, in the order of the schedule
// (pipeline_parts.hpp). Values and their gradients go from stage to stage. Only the files of
// fl_client_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/pipeline_parts.hpp"
#include "client/learn/torch/pass_group.hpp"
#include "client/learn/torch/put_off.hpp"
#include "client/learn/torch/step_sync.hpp"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <utility>
#include <vector>

namespace fl {

/// The thread that trains. For one step, or the passes of one evaluation. All ranks of the group
/// make the same calls. Functions throw SyncFailure.
class Pipeline {
 public:
  /// The learner, as a pipeline calls it. Microbatches are numbered from 0.
  struct Model {
    /// Call before each pass that has to do with a microbatch: the functions behind it are then
    /// about this one. Returns its inputs.
    std::function<torch::Tensor(std::int64_t microbatch)> begin;
    /// The outputs of these units.
    std::function<torch::Tensor(const torch::Tensor& values, const std::vector<std::size_t>& units)>
        forward;
    /// The loss of the model's outputs, whose backward pass adds to the gradients.
    std::function<torch::Tensor(const torch::Tensor& outputs)> loss;
    /// The shape of what goes between stages, fp32, where these are the inputs.
    std::function<std::vector<std::int64_t>(const torch::Tensor& inputs)> shape;
    std::int64_t blocks = 0;  // Those of the whole model.
  };
  /// `together`: of the same ranks. The arguments must outlive the object.
  Pipeline(const Model& model, PipelineGroup& group, StepSync& together);

  /// Takes the passes of a step, forward and back. The sums of the last stage's losses are
  /// returned on all ranks. After a stop request it ends early, and the group is of no use.
  double train(std::int64_t microbatches, const std::stop_token& stop);
  /// Takes forward passes; the last stage's rank calls take(outputs). A stop as above.
  using Take = std::function<void(const torch::Tensor& outputs)>;
  void evaluate(std::int64_t microbatches, const Take& take, const std::stop_token& stop);

 private:
  using Place = std::pair<std::int64_t, std::int64_t>;  // Microbatch and chunk.
  /// A pass whose backward pass is still to come.
  struct Passed {
    torch::Tensor inputs;   // The stage before has made them; undefined in the first stage.
    torch::Tensor outputs;  // Or the loss.
  };
  [[nodiscard]] std::int64_t stage_of(std::int64_t chunk) const;
  [[nodiscard]] bool is_last(std::int64_t stage) const {
    return stage + 1 == group_.division().stages();
  }
  [[nodiscard]] torch::Tensor receive(const StageValues& what, const torch::Tensor& inputs);
  [[nodiscard]] Passed forward(const PipelineOperation& operation);
  void backward(const PipelineOperation& operation);
  void add_weights(const PipelineOperation& operation);

  const Model& model_;
  PipelineGroup& group_;
  StepSync& together_;
  std::vector<std::vector<std::size_t>> units_;  // By chunk.
  std::map<Place, Passed> passed_;
  std::map<Place, PutOff::Work> put_off_;
  std::vector<torch::Tensor> losses_;
};

}  // namespace fl
