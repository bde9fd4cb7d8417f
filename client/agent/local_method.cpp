// SPDX-License-Identifier: Apache-2.0
#include "client/agent/local_method.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::client {

namespace {

/// Checks that the trainer can do what the method asks of it.
Result<void> check_abilities(const Strategy& strategy, const Trainer& trainer) {
  const Trainer::Abilities can = trainer.abilities();
  const LocalRule* const rule = strategy.local();
  const bool has_own_model = rule != nullptr && rule->own_model() != nullptr;
  const bool corrects = has_own_model || (rule != nullptr && rule->correct({}, {}, {}));
  const bool pulls = has_own_model || strategy.proximal_mu() > 0;
  const bool wants_gradient = rule != nullptr && rule->wants_gradient();
  const char* const lacks = strategy.counts_steps() && !can.optimizer ? "optimizer"
                            : corrects && !can.correction             ? "correction"
                            : pulls && !can.proximal                  ? "proximal"
                            : wants_gradient && !can.gradient         ? "gradient"
                                                                      : nullptr;
  if (lacks != nullptr) {
    return Error(Errc::invalid_input,
                 fmt::format("strategy '{}' needs a trainer that supports '{}', and this one does "
                             "not: strategies such as fedavg and fedadam take any trainer",
                             strategy.spec(), lacks));
  }
  if (!strategy.counts_steps() || !trainer.takes_steps_together()) return {};
  return Error(Errc::invalid_input,
               fmt::format("strategy '{}' does not work with --hogwild, because it counts "
                           "local steps that follow each other: leave out --hogwild",
                           strategy.spec()));
}

void fill(wire::SyncTimes& sync, const TrainReport& report) {
  sync.set_ranks(report.sync.ranks);
  sync.set_compute_seconds(report.sync.compute);
  sync.set_exposed_seconds(report.sync.exposed);
  sync.set_hidden_seconds(report.sync.hidden);
  sync.set_coding_seconds(report.sync.coding);
  sync.set_fp32_steps(report.fall_backs.fp32_steps);
}

void fill(wire::UploadBegin& begin, const TrainReport& report) {
  begin.set_examples(report.examples);
  begin.set_steps(report.steps);
  begin.set_loss(report.loss);
  if (report.predictions) begin.set_predictions(*report.predictions);
  begin.set_train_seconds(report.seconds);
  if (report.sync.ranks > 0) fill(*begin.mutable_sync(), report);
  for (const std::string& note : report.notes) {
    if (begin.notes_size() < limits::upload_notes_max)
      begin.add_notes(printable(note, limits::reason_bytes_max));
  }
}

void log_fall_backs(std::uint32_t round, const TrainReport& report) {
  const FallBacks& steps = report.fall_backs;
  if (steps.fp32_steps == 0) return;
  log_info("round {}: {} of {} steps in fp32: {} overflows, {} unusual lengths of the gradient",
           round, steps.fp32_steps, report.steps, steps.overflows, steps.odd_norms);
}

}  // namespace

Result<LocalMethod> LocalMethod::make(const std::string& strategy, Trainer& trainer,
                                      const ClientState& state) {
  auto parsed = parse_strategy(strategy);
  if (!parsed) return parsed.error().at("this client can't use the run's strategy");
  FL_TRY(RunLayout layout, run_layout(trainer.layout(), **parsed));
  FL_CHECK(check_abilities(**parsed, trainer));
  return LocalMethod(std::move(*parsed), std::move(layout), trainer, state);
}

std::optional<ClientState::OwnTensors> LocalMethod::own_tensors(const std::string& model) const {
  if (!has_own_tensors()) return std::nullopt;
  const bool is_whole = own_model() != nullptr;
  ClientState::OwnTensors own{
      model, strategy_->spec(), {}, kept_vector_elements() + layout_.personal_elements};
  for (const auto& tensor : trainer_->layout().tensors()) {
    if (is_whole || strategy_->is_personal(tensor.name))
      own.tensors.push_back({tensor.name, tensor.shape});
  }
  return own;
}

Result<std::vector<float>> LocalMethod::initial_values(std::uint64_t seed) const {
  FL_TRY(const auto whole, trainer_->initial_weights(seed));
  std::vector<float> values(layout_.all.elements());
  std::vector<float> personal(layout_.personal_elements);
  layout_.split(whole, std::span(values).first(layout_.model_elements), personal);
  return values;
}

/// How many values the rule's vector has: one for each parameter, or a whole model. 0 without one.
std::size_t LocalMethod::kept_vector_elements() const {
  if (rule() == nullptr || !rule()->keeps_vector()) return 0;
  return own_model() != nullptr ? layout_.model_elements : layout_.parameter_elements;
}

Result<std::vector<float>> LocalMethod::local_values(std::span<const float> version,
                                                     std::uint64_t seed) const {
  const std::size_t vector_size = kept_vector_elements();
  const std::size_t size = vector_size + layout_.personal_elements;
  FL_TRY(auto values, state_->local_values(size));
  if (values.empty() && own_model() != nullptr)
    values.assign(version.begin(), version.begin() + static_cast<std::ptrdiff_t>(size));
  if (!values.empty() || layout_.personal_elements == 0) {
    values.resize(size);
    return values;
  }
  FL_TRY(const auto whole, trainer_->initial_weights(seed));
  std::vector<float> part(layout_.model_elements);
  values.resize(size);
  layout_.split(whole, part, std::span(values).subspan(vector_size));
  return values;
}

/// The whole model. `room` holds it, if it must be joined.
std::span<const float> LocalMethod::whole_model(std::span<const float> version,
                                                std::span<const float> kept,
                                                std::vector<float>& room) const {
  const auto part = version.first(layout_.model_elements);
  if (layout_.personal_elements == 0) return part;
  room.resize(part.size() + layout_.personal_elements);
  layout_.join(part, kept.last(layout_.personal_elements), room);
  return room;
}

Result<void> LocalMethod::check_settings(const TrainSettings& settings) const {
  if (auto fits = strategy_->check(settings); !fits)
    return fits.error().at("the server's settings");
  if (settings.proximal_mu <= 0 || trainer_->abilities().proximal) return {};
  return Error(Errc::invalid_input,
               "the run's proximal term needs a trainer that supports 'proximal'");
}

/// What is added to every gradient of the whole model; empty if nothing is. Statistics and
/// personal tensors get zeros.
std::vector<float> LocalMethod::correction(std::span<const float> version,
                                           std::span<const float> vector) const {
  if (rule() == nullptr) return {};
  std::vector<float> part(layout_.model_elements);
  if (!rule()->correct(version.subspan(layout_.model_elements), vector,
                       std::span(part).first(layout_.parameter_elements)))
    return {};
  if (layout_.personal_elements == 0) return part;
  std::vector<float> whole(layout_.model_elements + layout_.personal_elements);
  layout_.join(part, std::vector<float>(layout_.personal_elements), whole);
  return whole;
}

/// The gradient of the version's model at `model`, if the rule wants it; else empty.
Result<std::vector<float>> LocalMethod::start_gradient(const TrainSettings& settings,
                                                       std::span<const float> model,
                                                       std::stop_token stop) {
  std::vector<float> gradient;
  if (rule() == nullptr || !rule()->wants_gradient()) return gradient;
  gradient.resize(model.size());
  FL_CHECK(trainer_->gradient(model, settings, gradient, std::move(stop)));
  if (layout_.personal_elements == 0) return gradient;
  std::vector<float> part(layout_.model_elements);
  std::vector<float> personal(layout_.personal_elements);
  layout_.split(gradient, part, personal);
  return part;
}

Result<void> LocalMethod::train(const TrainSettings& settings, std::span<const float> version,
                                std::span<float> kept, std::span<float> update,
                                wire::UploadBegin& begin, std::stop_token stop) {
  FL_ASSERT(version.size() == layout_.all.elements() && update.size() == version.size());
  FL_ASSERT(kept.size() == kept_vector_elements() + layout_.personal_elements);
  FL_CHECK(check_settings(settings));
  const auto elements = static_cast<std::size_t>(layout_.model_elements);
  const auto parameters = static_cast<std::size_t>(layout_.parameter_elements);
  const auto personal = kept.last(layout_.personal_elements);
  const auto vector = kept.first(kept.size() - personal.size());
  std::vector<float> room;
  const auto model = whole_model(version, kept, room);

  if (own_model() != nullptr) FL_CHECK(train_own(settings, model, vector, stop));
  const auto added = correction(version, vector);
  FL_TRY(const auto gradient, start_gradient(settings, model, stop));
  // The trainer trains the whole model; the rule and the server know only what travels.
  std::vector<float> whole_update(personal.empty() ? 0 : model.size());
  const auto trained = personal.empty() ? update.first(elements) : std::span(whole_update);
  FL_TRY(const TrainReport report, trainer_->train(model, settings, added, trained, stop));
  if (!personal.empty()) {
    std::vector<float> moved(personal.size());
    layout_.split(trained, update.first(elements), moved);
    for (std::size_t i = 0; i < personal.size(); ++i) personal[i] += moved[i];
  }
  fill(begin, report);
  log_fall_backs(settings.round, report);
  if (rule() != nullptr) {
    const auto at_start =
        std::span<const float>(gradient).first(std::min(gradient.size(), parameters));
    rule()->finish({settings, report.steps, version.subspan(elements), at_start},
                   update.first(parameters), update.subspan(elements), vector);
  }
  return {};
}

/// `own` takes its steps of the round. The trainer's proximal term is about where it starts from,
/// and the correction moves it: lambda (v - v_start) + lambda (v_start - w) = lambda (v - w).
Result<void> LocalMethod::train_own(TrainSettings settings, std::span<const float> global,
                                    std::span<float> own, std::stop_token stop) {
  settings.local_epochs = own_model()->epochs;
  settings.local_steps = 0;
  settings.proximal_mu = own_model()->lambda;
  const auto lambda = static_cast<float>(own_model()->lambda);
  std::vector<float> correction(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) correction[i] = lambda * (own[i] - global[i]);
  std::vector<float> update(own.size());
  FL_TRY([[maybe_unused]] const TrainReport report,
         trainer_->train(own, settings, correction, update, std::move(stop)));
  for (std::size_t i = 0; i < own.size(); ++i) own[i] += update[i];
  return {};
}

Result<LocalMethod::Evaluations> LocalMethod::evaluate(std::span<const float> version,
                                                       std::span<const float> kept,
                                                       std::stop_token stop) {
  Evaluations out;
  if (own_model() != nullptr) {
    FL_TRY(out.own, trainer_->evaluate(kept, stop));
  }
  std::vector<float> room;
  FL_TRY(out.model, trainer_->evaluate(whole_model(version, kept, room), std::move(stop)));
  return out;
}

}  // namespace fl::client
