// SPDX-License-Identifier: Apache-2.0
// Mini-batch SGD of one thread, on weights that other threads may train at the same time. Only the
// files of fl_client_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/precision.hpp"
#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/kept_moments.hpp"
#include "client/learn/torch/loss_scale.hpp"
#include "client/learn/torch/passes.hpp"
#include "client/learn/torch/step_sync.hpp"
#include "client/learn/torch/torch_examples.hpp"
#include "client/learn/torch/torch_models.hpp"
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
  [[nodiscard]] Passes& passes() { return *passes_; }
  [[nodiscard]] const ModelSpec& spec() const { return passes_->spec(); }

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
  [[nodiscard]] bool has_time(const LocalRun& run) const;
  [[nodiscard]] bool is_scaled(bool is_low) const {
    return is_low && precision_.has(NumberFormat::fp16);
  }

  std::unique_ptr<Passes> passes_;
  std::unique_ptr<HeldParameters> parameters_;
  PrecisionPlan precision_;
};

}  // namespace fl
