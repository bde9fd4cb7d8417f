// SPDX-License-Identifier: Apache-2.0
// The jobs of the agent's worker thread: it trains and codes updates, and evaluates versions.
#include "client/agent/agent.hpp"
#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/metric_messages.hpp"
#include "shared/wire/train_messages.hpp"

#include <fmt/format.h>

namespace fl {

namespace {

Seeds seeds_of(const wire::Offer& offer) {
  const std::uint64_t shared = offer.shared_seed();
  return shared != 0 ? Seeds(offer.seed(), shared) : Seeds(offer.seed());
}

/// The values of the whole model, with zeros for its personal part.
std::vector<float> joined(const RunLayout& layout, std::span<const float> part) {
  std::vector<float> whole(layout.model_elements + layout.personal_elements);
  layout.join(part, std::vector<float>(layout.personal_elements), whole);
  return whole;
}

void log_fall_backs(std::uint32_t round, const TrainReport& report) {
  const FallBacks& steps = report.fall_backs;
  if (steps.fp32_steps == 0) return;
  log_info("round {}: {} of {} steps in fp32: {} overflows, {} unusual lengths of the gradient",
           round, steps.fp32_steps, report.steps, steps.overflows, steps.odd_norms);
}

void fill(wire::SyncTimes& sync, const TrainReport& report) {
  sync.set_ranks(report.sync.ranks);
  sync.set_compute_seconds(report.sync.compute);
  sync.set_exposed_seconds(report.sync.exposed);
  sync.set_hidden_seconds(report.sync.hidden);
  sync.set_coding_seconds(report.sync.coding);
  sync.set_fp32_steps(report.fall_backs.fp32_steps);
}

}  // namespace

/// What travels with the model begins with zeros.
Result<std::vector<float>> Agent::initial_values(std::uint64_t seed) const {
  FL_TRY(const auto whole, trainer_->initial_weights(seed));
  std::vector<float> values(layout_.all.elements());
  std::vector<float> personal(layout_.personal_elements);
  layout_.split(whole, std::span(values).first(layout_.model_elements), personal);
  return values;
}

/// `version`: all values of a version, with what travels with the model.
Agent::JobDone Agent::train(const wire::Offer& offer, std::span<const float> version,
                            std::stop_token stop) {
  JobDone done;
  const auto work = [&]() -> Result<void> {
    FL_CHECK(check_initial(offer));
    auto codec = parse_codec(offer.codec());
    if (!codec) return codec.error().at("the server's codec");
    wire::UploadBegin begin;
    begin.set_task(offer.task());
    begin.set_round(offer.round());
    begin.set_version(offer.version());
    begin.set_codec(offer.codec());
    begin.set_reference(offer.reference());
    FL_TRY(auto kept, local_values(version));
    if (offer.evaluate_holdout()) {
      std::vector<float> room;
      const auto model = whole_model(version, kept, room);
      FL_TRY(const EvalReport holdout, trainer_->evaluate(model, stop));
      begin.set_has_holdout(holdout.examples > 0);
      begin.set_holdout_examples(holdout.examples);
      begin.set_holdout_loss(holdout.loss);
      if (holdout.predictions) begin.set_holdout_predictions(*holdout.predictions);
      write_metrics(holdout.metrics, *begin.mutable_holdout_metrics());
      if (own_model() != nullptr) {
        FL_TRY(const EvalReport own, trainer_->evaluate(kept, stop));
        begin.set_own_loss(own.loss);
        write_metrics(own.metrics, *begin.mutable_own_metrics());
      }
    }
    auto update = models_.borrow(layout_.all.elements());
    const TimePoint began = Clock::now();
    FL_CHECK(train_by_rule(offer, version, begin, update, kept, stop));
    failpoint("update.trained");
    trace("train round", offer.round(), began);
    const TimePoint trained = Clock::now();
    const std::uint64_t before = coder_ ? coder_->results() : 0;
    FL_CHECK(state_->save_update(layout_, update, **codec, seeds_of(offer), begin, kept,
                                 strategy_->local(), device_for(**codec)));
    trace("code round", offer.round(), trained);
    models_.give_back(std::move(update));
    log_info(
        "round {}: trained {} steps on {} examples in {:.2f} s, loss {:.4f}; coded to {} bytes in "
        "{:.4f} s{}",
        offer.round(), begin.steps(), begin.examples(), begin.train_seconds(), begin.loss(),
        state_->pending()->begin.bytes(),
        std::chrono::duration<double>(Clock::now() - trained).count(),
        coder_ && coder_->results() > before ? ", on the GPU" : "");
    return {};
  };
  done.result = work();
  if (!done.result) done.result = done.result.error().at(fmt::format("round {}", offer.round()));
  return done;
}

/// What the update was trained on, if it can be coded there; and where it lies, if it is sent as
/// the trainer has made it.
DeviceCopy Agent::device_for(const Codec& codec) {
  const bool is_as_made = strategy_->local() == nullptr && layout_.personal_elements == 0 &&
                          !codec.error_feedback() && !codec.is_delta();
  if (!codec.is_for_device(layout_.all, is_as_made)) return {};
  const float* const values = trainer_->update_on_device();
  if (values == nullptr) return {};
  if (!coder_) {
    auto device = trainer_->make_codec_device();
    if (!device) log_warn("updates are coded on the CPU: {}", device.error().message());
    coder_.emplace(device ? std::move(*device) : nullptr);
  }
  return {.coder = &*coder_, .values = is_as_made ? values : nullptr};
}

/// What the method trains here and keeps, or nullptr.
const OwnModel* Agent::own_model() const {
  return strategy_->local() != nullptr ? strategy_->local()->own_model() : nullptr;
}

/// How many values the rule's vector has: one for each parameter, or a whole model. 0 without one.
std::size_t Agent::kept_vector_elements() const {
  const LocalRule* const rule = strategy_->local();
  if (rule == nullptr || !rule->keeps_vector()) return 0;
  return own_model() != nullptr ? layout_.model_elements : layout_.parameter_elements;
}

/// What the method keeps here: the rule's vector, zeros at first, or `version` where it is a model;
/// and the personal part, as in the initial model at first. Either may be empty.
Result<std::vector<float>> Agent::local_values(std::span<const float> version) const {
  const std::size_t vector_size = kept_vector_elements();
  const std::size_t size = vector_size + layout_.personal_elements;
  FL_TRY(auto values, state_->local_values(size));
  if (values.empty() && own_model() != nullptr)
    values.assign(version.begin(), version.begin() + static_cast<std::ptrdiff_t>(size));
  if (!values.empty() || layout_.personal_elements == 0) {
    values.resize(size);
    return values;
  }
  FL_TRY(const auto whole, trainer_->initial_weights(seed_));
  std::vector<float> part(layout_.model_elements);
  values.resize(size);
  layout_.split(whole, part, std::span(values).subspan(vector_size));
  return values;
}

/// What this client makes for itself by the method, if anything.
std::optional<ClientState::OwnTensors> Agent::own_tensors() const {
  const bool is_whole = own_model() != nullptr;
  if (!is_whole && layout_.personal_elements == 0) return std::nullopt;
  ClientState::OwnTensors own{
      model_, strategy_->spec(), {}, kept_vector_elements() + layout_.personal_elements};
  for (const auto& tensor : trainer_->layout().tensors()) {
    if (is_whole || strategy_->is_personal(tensor.name))
      own.tensors.push_back({tensor.name, tensor.shape});
  }
  return own;
}

/// The model of a version, joined with this client's personal part, the last of the `kept` values,
/// if it has one. `room` holds what is joined.
std::span<const float> Agent::whole_model(std::span<const float> version,
                                          std::span<const float> kept,
                                          std::vector<float>& room) const {
  const auto part = version.first(layout_.model_elements);
  if (layout_.personal_elements == 0) return part;
  room.resize(part.size() + layout_.personal_elements);
  layout_.join(part, kept.last(layout_.personal_elements), room);
  return room;
}

/// Trains, with the strategy's local rule before and after, and says in `begin` what was done.
/// `update`: all that is sent; `kept`: what the method keeps here, made what it keeps from now on.
Result<void> Agent::train_by_rule(const wire::Offer& offer, std::span<const float> version,
                                  wire::UploadBegin& begin, std::span<float> update,
                                  std::span<float> kept, std::stop_token stop) {
  const auto settings = read_train_settings(offer);
  if (!settings) return settings.error().at("the server's optimizer");
  if (auto fits = strategy_->check(*settings); !fits)
    return fits.error().at("the server's settings");
  if (settings->proximal_mu > 0 && !trainer_->abilities().proximal)
    return Error(Errc::invalid_input,
                 "the run's proximal term needs a trainer that supports 'proximal'");
  const LocalRule* const rule = strategy_->local();
  const auto elements = static_cast<std::size_t>(layout_.model_elements);
  const auto parameters = static_cast<std::size_t>(layout_.parameter_elements);
  const auto shared = version.subspan(elements);
  std::vector<float> room;
  const auto model = whole_model(version, kept, room);
  const auto personal = kept.last(layout_.personal_elements);
  const auto vector = kept.first(kept.size() - personal.size());

  if (own_model() != nullptr) FL_CHECK(train_own(*settings, model, vector, stop));
  std::vector<float> correction(rule != nullptr ? elements : 0);  // 0 for statistics.
  if (rule == nullptr || !rule->correct(shared, vector, std::span(correction).first(parameters)))
    correction.clear();
  std::vector<float> gradient;
  if (rule != nullptr && rule->wants_gradient()) {
    gradient.resize(model.size());
    FL_CHECK(trainer_->gradient(model, *settings, gradient, stop));
  }
  // The whole model was trained; the rule and the server know only the part that is not personal.
  std::vector<float> moved(personal.size());
  std::vector<float> whole_update(personal.empty() ? 0 : model.size());
  const auto trained = personal.empty() ? update.first(elements) : std::span(whole_update);
  if (!personal.empty()) {
    if (!correction.empty()) correction = joined(layout_, correction);
    if (!gradient.empty()) {
      std::vector<float> part(elements);
      layout_.split(gradient, part, moved);
      gradient = std::move(part);
    }
  }
  FL_TRY(const TrainReport report, trainer_->train(model, *settings, correction, trained, stop));
  if (!personal.empty()) {
    layout_.split(trained, update.first(elements), moved);
    for (std::size_t i = 0; i < personal.size(); ++i) personal[i] += moved[i];
  }
  begin.set_examples(report.examples);
  begin.set_steps(report.steps);
  begin.set_loss(report.loss);
  if (report.predictions) begin.set_predictions(*report.predictions);
  begin.set_train_seconds(report.seconds);
  log_fall_backs(settings->round, report);
  if (report.sync.ranks > 0) fill(*begin.mutable_sync(), report);
  for (const std::string& note : report.notes) {
    if (begin.notes_size() < limits::upload_notes_max)
      begin.add_notes(printable(note, limits::reason_bytes_max));
  }
  if (rule != nullptr) {
    const auto at_start =
        std::span<const float>(gradient).first(std::min(gradient.size(), parameters));
    rule->finish({*settings, report.steps, shared, at_start}, update.first(parameters),
                 update.subspan(elements), vector);
  }
  return {};
}

/// `own` takes its steps of the round. The trainer's proximal term is about where it starts from,
/// and the correction moves it: lambda (v - v_start) + lambda (v_start - w) = lambda (v - w).
Result<void> Agent::train_own(TrainSettings settings, std::span<const float> global,
                              std::span<float> own, std::stop_token stop) {
  settings.local_epochs = own_model()->epochs;
  settings.local_steps = 0;
  settings.proximal_mu = own_model()->lambda;
  const auto lambda = static_cast<float>(own_model()->lambda);
  std::vector<float> correction(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) correction[i] = lambda * (own[i] - global[i]);
  std::vector<float> update(own.size());
  FL_TRY([[maybe_unused]] const TrainReport report,
         trainer_->train(own, settings, correction, update, stop));
  for (std::size_t i = 0; i < own.size(); ++i) own[i] += update[i];
  return {};
}

/// Whether the run's initial model is what this machine makes of (model, seed): if not, its
/// arithmetic or release differs, and its updates would be of another model.
Result<void> Agent::check_initial(const wire::Offer& offer) {
  if (offer.initial_digest().empty()) return {};
  if (!initial_digest_) {
    FL_TRY(const auto values, initial_values(seed_));
    initial_digest_ = Digest::of(std::as_bytes(std::span(values)));
  }
  if (initial_digest_->raw() == offer.initial_digest()) return {};
  return Error(Errc::unauthenticated,
               fmt::format("this client makes other initial weights of '{}' and seed {} (digest "
                           "{}) than the run began with: "
                           "install the same release everywhere",
                           model_, seed_, initial_digest_->hex()));
}

Agent::JobDone Agent::evaluate(std::uint32_t version, std::span<const float> values,
                               std::stop_token stop) {
  JobDone done;
  wire::Evaluation evaluation;
  evaluation.set_version(version);
  const auto measure = [&]() -> Result<EvalReport> {
    std::vector<float> kept;
    if (layout_.personal_elements > 0 || own_model() != nullptr) {
      FL_TRY(kept, local_values(values));
    }
    if (own_model() != nullptr) {
      FL_TRY(const EvalReport own, trainer_->evaluate(kept, stop));
      evaluation.set_own_loss(own.loss);
      write_metrics(own.metrics, *evaluation.mutable_own_metrics());
    }
    std::vector<float> room;
    return trainer_->evaluate(whole_model(values, kept, room), stop);
  };
  const TimePoint began = Clock::now();
  auto report = measure();
  trace("evaluate version", version, began);
  if (report) {
    evaluation.set_examples(report->examples);
    evaluation.set_loss(report->loss);
    if (report->predictions) evaluation.set_predictions(*report->predictions);
    write_metrics(report->metrics, *evaluation.mutable_metrics());
  } else {
    done.result = report.error().at(fmt::format("evaluation of version {}", version));
  }
  done.evaluation = std::move(evaluation);
  return done;
}

/// Makes version 0 of a built-in model from the run's seed, so that it need not be downloaded, and
/// is a base for deltas. If the run began with other weights, the digests tell.
void Agent::make_version_0() {
  if (model_.starts_with(custom_prefix)) return;
  auto made = initial_values(seed_);
  if (!made) return;  // Then it is downloaded.
  auto values = std::move(*made);
  replica_.digest = Digest::of(std::as_bytes(std::span(std::as_const(values))));
  replica_.version = 0;
  replica_.is_there = true;
  initial_digest_ = replica_.digest;
  models_.keep(replica_.digest, std::move(values));
}

}  // namespace fl
