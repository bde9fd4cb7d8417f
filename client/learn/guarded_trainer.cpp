// SPDX-License-Identifier: Apache-2.0
#include "client/learn/guarded_trainer.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string_view>
#include <utility>

namespace fl {

namespace {

/// Calls `work`, whose exceptions become errors that end the client.
template <class Work>
auto guarded(const char* place, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Error(Errc::internal,
                 fmt::format("{} of the trainer threw an exception: {}", place, error.what()));
  } catch (...) {
    return Error(Errc::internal, fmt::format("{} of the trainer threw an exception that is no "
                                             "std::exception",
                                             place));
  }
}

/// A model that is not built in has its tensors where the server puts those of a file.
Result<void> check_order(const Layout& layout) {
  const auto place = [](const Layout::Tensor& tensor) {
    return std::pair(is_statistic(tensor.name), std::string_view(tensor.name));
  };
  const auto& tensors = layout.tensors();
  const auto late = std::ranges::is_sorted_until(tensors, {}, place);
  if (late == tensors.end()) return {};
  return Error(Errc::invalid_input,
               fmt::format("the trainer's layout has the tensor '{}' behind '{}': first come the "
                           "parameters, sorted by name, then running means and variances, sorted "
                           "by name",
                           late->name, std::prev(late)->name));
}

class GuardedTrainer final : public Trainer {
 public:
  GuardedTrainer(std::unique_ptr<Trainer> own, std::string model)
      : own_(std::move(own)), model_(std::move(model)) {}

  const Layout& layout() const override { return own_->layout(); }
  std::uint64_t train_examples() const override { return own_->train_examples(); }
  std::uint64_t holdout_examples() const override { return own_->holdout_examples(); }
  std::span<const MetricKind> metrics() const override { return own_->metrics(); }
  std::vector<ColumnSummary> summaries() const override { return own_->summaries(); }
  Abilities abilities() const override { return own_->abilities(); }
  void enter_run(const std::string& run_key) override { own_->enter_run(run_key); }
  bool takes_steps_together() const override { return own_->takes_steps_together(); }
  Result<std::unique_ptr<CodecDevice>> make_codec_device() override {
    return own_->make_codec_device();
  }
  const float* update_on_device() override { return own_->update_on_device(); }

  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    const bool is_builtin = !model_.empty() && !model_.starts_with(custom_prefix);
    if (is_builtin) return builtin_initial_weights(model_, seed);
    FL_TRY(auto weights, guarded("initial_weights()", [&] { return own_->initial_weights(seed); }));
    if (weights.size() != layout().elements()) {
      return Error(Errc::invalid_input,
                   fmt::format("the trainer made {} initial weights for a model of {}",
                               weights.size(), layout().elements()));
    }
    FL_CHECK(check_finite("initial weight", weights));
    return weights;
  }

  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    const TimePoint begin = Clock::now();
    FL_TRY(TrainReport report, guarded("train()", [&] {
             return own_->train(global, settings, correction, update, stop);
           }));
    if (!std::isfinite(report.loss))
      return Error(Errc::invalid_input, "the trainer's loss is not finite");
    FL_CHECK(check_predictions(report.predictions.value_or(0)));
    FL_CHECK(check_finite("update of", update));
    report.seconds = seconds(Clock::now() - begin);
    return report;
  }

  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    FL_CHECK(
        guarded("gradient()", [&] { return own_->gradient(weights, settings, gradient, stop); }));
    return check_finite("gradient of", gradient);
  }

  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    FL_TRY(EvalReport report, guarded("evaluate()", [&] { return own_->evaluate(weights, stop); }));
    FL_CHECK(check_predictions(report.predictions.value_or(0)));
    for (const MetricValue& value : report.metrics) FL_CHECK(check_metric_value(value, metrics()));
    return report;
  }

 private:
  [[nodiscard]] Result<void> check_finite(const char* what, std::span<const float> values) const {
    const auto wrong = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
    if (wrong == values.end()) return {};
    const auto index = static_cast<std::uint64_t>(wrong - values.begin());
    return Error(Errc::invalid_input,
                 fmt::format("the trainer's {} {} is not finite", what, layout().describe(index)));
  }

  std::unique_ptr<Trainer> own_;
  std::string model_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_guarded_trainer(const TrainerFactory& factory,
                                                      const std::string& model) {
  FL_TRY(auto own, guarded("the factory", [&] { return factory(model); }));
  if (!own) return Error(Errc::internal, "the factory of the trainer returned no trainer");
  if (own->layout().elements() == 0)
    return Error(Errc::invalid_input, "the trainer's layout has no elements to train");
  const bool is_builtin = !model.empty() && !model.starts_with(custom_prefix);
  if (!is_builtin) FL_CHECK(check_order(own->layout()));
  if (auto checked = check_metrics(own->metrics()); !checked)
    return checked.error().at("the trainer's metrics()");
  return std::unique_ptr<Trainer>(std::make_unique<GuardedTrainer>(std::move(own), model));
}

}  // namespace fl
