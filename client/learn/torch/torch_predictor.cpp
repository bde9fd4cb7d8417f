// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_predictor.hpp"

#include "client/learn/torch/find_device.hpp"
#include "client/learn/torch/guarded.hpp"
#include "client/learn/torch/torch_learner.hpp"
#include "shared/base/async/parallel.hpp"

#include <torch/utils.h>

#include <algorithm>

namespace fl {

namespace {

/// The sum of each text's cross-entropies: fp32 [n].
torch::Tensor losses_of_texts(Learner& learner, const Batch& batch) {
  const torch::Tensor outputs = learner.passes().forward(batch.inputs, false);
  return torch::cross_entropy_loss(outputs.flatten(0, 1), batch.targets.flatten(), {},
                                   at::Reduction::None, no_target)
      .view(batch.targets.sizes())
      .sum(1);
}

}  // namespace

Result<void> predict_by_torch(const LearnOptions& options, const BuiltinModel& model,
                              const LocalData& data, const TakeOutputs& take) {
  return guarded([&]() -> Result<void> {
    FL_TRY(const torch::Device device, find_device(options.device));
    FL_TRY(Learner learner, Learner::make(model.model, device, {}));
    torch::set_num_threads(threads_for(options.threads));
    const Examples examples(data.all, data.holdout, model.spec, device);
    const c10::InferenceMode inference;
    learner.parameters().load(model.weights);
    const std::int64_t at_once = evaluated_together(model.spec);
    for (std::int64_t at = 0; at < examples.size(); at += at_once) {
      const std::int64_t n = std::min(at_once, examples.size() - at);
      const torch::Tensor positions = torch::arange(at, at + n, torch::kInt64);
      const bool is_text = model.spec.task == ModelSpec::Task::language;
      const torch::Tensor made = is_text
                                     ? losses_of_texts(learner, examples.batch(positions))
                                     : learner.passes().forward(examples.inputs(positions), false);
      const torch::Tensor outputs = made.to(torch::kCPU).contiguous();
      FL_CHECK(take({outputs.const_data_ptr<float>(), static_cast<std::size_t>(outputs.numel())}));
    }
    return success();
  });
}

}  // namespace fl
