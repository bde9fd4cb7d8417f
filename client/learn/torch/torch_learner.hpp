// Mini-batch SGD of one thread, on weights that other threads may train at the same time. Only the
// files of fl_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/torch/loss_scale.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/trainer.hpp"
#include "shared/base/async/clock.hpp"

#include <atomic>

namespace fl {

/// Images and labels on the device that trains, loaded once.
struct Examples {
  Examples(const ImageSet& set, torch::Device device);
  [[nodiscard]] std::int64_t size() const { return labels.size(0); }

  torch::Tensor images;  // fp32 [n, 1, rows, columns] in [0, 1]
  torch::Tensor labels;  // int64 [n]
};

/// Of how many examples a step's gradient is, but for the last of an epoch.
[[nodiscard]] std::int64_t step_examples(const TrainSettings& settings, std::int64_t examples);

/// A round's training, which all its threads have in common.
struct LocalRun {
  const TrainSettings& settings;
  torch::Tensor start;            // The parameters that it began with, and
  torch::Tensor correction = {};  // what is added to every gradient. Undefined: nothing.
  std::uint64_t seed = 0;         // Of the order of the examples.
  std::uint64_t steps = 0;        // Of all threads together.
  TimePoint end = never;          // No step begins after it but the first.
  std::stop_token stop = {};
  std::atomic<std::uint64_t> begun = 0;  // Steps.
};

/// What a thread has done of it.
struct LocalShare {
  std::uint64_t steps = 0;
  std::uint64_t examples = 0;
  double loss_sum = 0;  // Over these examples.
};

class Learner {
 public:
  /// `values`: those of another's model, to be shared; undefined: its own. Errors as
  /// make_module().
  [[nodiscard]] static Result<Learner> make(std::string_view model, torch::Device device,
                                            torch::ScalarType precision, torch::Tensor values = {});

  /// Takes steps until the run has as many as it needs. The state of optimizer and loss scale is
  /// new. `number`, from 0, tells the run's threads apart. Errors, with round and step: cancelled;
  /// invalid_input, a loss that is not finite, or a gradient that has no place in fp16.
  [[nodiscard]] Result<LocalShare> train(LocalRun& run, const Examples& examples,
                                         std::uint64_t number);

  [[nodiscard]] FlatParameters& parameters() { return parameters_; }
  /// As in training where `is_training`: a BatchNorm goes by the images' statistics, and counts
  /// them among its own; otherwise by its own.
  [[nodiscard]] torch::Tensor forward(const torch::Tensor& images, bool is_training) {
    if (module_->is_training() != is_training) module_->train(is_training);
    return module_->forward(images);
  }

 private:
  Learner(Module module, FlatParameters parameters, torch::ScalarType precision)
      : module_(std::move(module)), parameters_(std::move(parameters)), precision_(precision) {}

  double add_gradient(const Examples& examples, const torch::Tensor& batch, std::int64_t at_once,
                      const LossScale& scale, const std::stop_token& stop);
  bool take_scale_out(LossScale& scale);

  Module module_;
  FlatParameters parameters_;
  torch::ScalarType precision_;
};

}  // namespace fl
