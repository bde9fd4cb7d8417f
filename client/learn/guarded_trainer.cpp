// SPDX-License-Identifier: Apache-2.0
#include "client/learn/guarded_trainer.hpp"

#include "client/learn/blockwise_trainer.hpp"
#include "kernels/kernels.hpp"
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

/// Passes on what the user's trainer makes, if all of it is finite.
class CheckedSink final : public ValueSink {
 public:
  /// `what`: of the error, "update of". All must outlive it.
  CheckedSink(ValueSink& out, const char* what, const Layout& layout)
      : out_(out), what_(what), layout_(layout) {}

  Result<void> write(std::uint64_t first, std::span<const float> values) override {
    FL_CHECK(check_finite(first, values));
    return out_.write(first, values);
  }
  std::span<float> whole() override {
    memory_ = out_.whole();
    return memory_;
  }
  /// Checks what was written to the memory of whole().
  [[nodiscard]] Result<void> check() const { return check_finite(0, memory_); }

 private:
  [[nodiscard]] Result<void> check_finite(std::uint64_t first,
                                          std::span<const float> values) const {
    const std::size_t wrong = kernels().scan(values.data(), values.size()).first_bad;
    if (wrong == values.size()) return {};
    const std::uint64_t index = first + wrong;
    return Error(Errc::invalid_input,
                 fmt::format("the trainer's {} {} is not finite", what_, layout_.describe(index)));
  }

  ValueSink& out_;
  const char* what_;
  const Layout& layout_;
  std::span<float> memory_;
};

class GuardedTrainer final : public BlockwiseTrainer {
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

  Result<void> make_initial(std::uint64_t seed, ValueSink& out) const override {
    const bool is_builtin = !model_.empty() && !model_.starts_with(custom_prefix);
    if (is_builtin) return make_builtin_initial_weights(model_, seed, write_to(out));
    CheckedSink checked(out, "initial weight", layout());
    return guarded("initial_weights()", [&] { return own_->make_initial(seed, checked); });
  }

  Result<TrainReport> train_blocks(const ValueSource& global, const TrainSettings& settings,
                                   const ValueSource* correction, ValueSink& update,
                                   std::stop_token stop) override {
    const TimePoint begin = Clock::now();
    CheckedSink checked(update, "update of", layout());
    FL_TRY(TrainReport report, guarded("train()", [&] {
             return own_->train_blocks(global, settings, correction, checked, stop);
           }));
    if (!std::isfinite(report.loss))
      return Error(Errc::invalid_input, "the trainer's loss is not finite");
    FL_CHECK(check_predictions(report.predictions.value_or(0)));
    FL_CHECK(checked.check());
    report.seconds = seconds(Clock::now() - begin);
    return report;
  }

  Result<void> write_gradient(const ValueSource& weights, const TrainSettings& settings,
                              ValueSink& gradient, std::stop_token stop) override {
    CheckedSink checked(gradient, "gradient of", layout());
    FL_CHECK(guarded("gradient()",
                     [&] { return own_->write_gradient(weights, settings, checked, stop); }));
    return checked.check();
  }

  Result<EvalReport> evaluate_blocks(const ValueSource& weights, std::stop_token stop) override {
    FL_TRY(EvalReport report,
           guarded("evaluate()", [&] { return own_->evaluate_blocks(weights, stop); }));
    FL_CHECK(check_predictions(report.predictions.value_or(0)));
    for (const MetricValue& value : report.metrics) FL_CHECK(check_metric_value(value, metrics()));
    return report;
  }

 private:
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
