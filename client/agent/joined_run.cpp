// SPDX-License-Identifier: Apache-2.0
#include "client/agent/joined_run.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/metric_messages.hpp"
#include "shared/wire/summary_messages.hpp"
#include "shared/wire/train_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

constexpr std::size_t run_key_digits = 16;

/// Checks the texts of a Welcome before they are used in file names and messages.
Result<void> check_welcome(const wire::Welcome& welcome) {
  const std::string& key = welcome.run_key();
  const bool is_hex = std::ranges::all_of(
      key, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (key.size() != run_key_digits || !is_hex) {
    return Error(Errc::protocol,
                 fmt::format("the server's run key '{}' is not {} hexadecimal digits",
                             printable(key, run_key_digits), run_key_digits));
  }
  FL_CHECK(check_length("model", welcome.model(), limits::run_model_bytes_max));
  return check_length("strategy", welcome.strategy(), limits::spec_bytes_max);
}

/// Errors: protocol, for steps that are not those of the layout's tensors.
Result<codec::CodeInputs> inputs_of(const wire::Offer& offer, const Layout& layout) {
  const std::uint64_t shared = offer.shared_seed() != 0 ? offer.shared_seed() : offer.seed();
  auto steps = codec::parse_lane_steps(offer.lane_steps(), layout.tensors().size());
  if (!steps) return Error(Errc::protocol, "the offer's lane_steps: " + steps.error().message());
  return codec::CodeInputs(offer.seed(), shared,
                           std::make_shared<const codec::LaneSteps>(std::move(*steps)));
}

wire::UploadBegin begin_of(const wire::Offer& offer) {
  wire::UploadBegin begin;
  begin.set_task(offer.task());
  begin.set_round(offer.round());
  begin.set_version(offer.version());
  begin.set_codec(offer.codec());
  begin.set_reference(offer.reference());
  begin.set_attempt(offer.secure().attempt());
  return begin;
}

/// Writes that the update was saved just now, in so many seconds, and the parts of that, which are
/// sums, one after the other.
void trace_saving(TraceFile* trace, const wire::UploadBegin& saved, double took_s) {
  trace_work(trace, "save round", saved.round(), took_s);
  if (trace == nullptr) return;
  double ago_s = took_s;
  std::vector<TraceSpan> spans;
  for (const auto& [name, part_s] : {std::pair("coding", saved.encode_seconds()),
                                     {"residual", saved.residual_seconds()},
                                     {"digest", saved.digest_seconds()},
                                     {"sync", saved.sync_seconds()}}) {
    if (part_s > 0) spans.push_back(trace_span(name, "saving", ago_s, part_s));
    ago_s -= part_s;
  }
  trace->write(0, spans);
}

/// Writes what the version's evaluation before training gave.
void fill(wire::UploadBegin& begin, const LocalMethod::Evaluations& measured) {
  begin.set_has_holdout(measured.model.examples > 0);
  begin.set_holdout_examples(measured.model.examples);
  begin.set_holdout_loss(measured.model.loss);
  if (measured.model.predictions) begin.set_holdout_predictions(*measured.model.predictions);
  write_metrics(measured.model.metrics, *begin.mutable_holdout_metrics());
  if (!measured.own) return;
  begin.set_own_loss(measured.own->loss);
  write_metrics(measured.own->metrics, *begin.mutable_own_metrics());
}

}  // namespace

// Entering -------------------------------------------------------------------------------------

/// Checks how large a model is, before memory for its values is taken.
Result<void> JoinedRun::check_size(const std::string& model, std::uint64_t parameters) const {
  if (parameters <= options_.parameters_max) return {};
  return Error(Errc::invalid_input,
               fmt::format("the server's model '{}' has {} parameters, and this client takes at "
                           "most {}: if you expect such a model, start with --max-parameters {}",
                           printable(model), parameters, options_.parameters_max, parameters));
}

Awaitable<Result<void>> JoinedRun::enter(const wire::Welcome& welcome, const Pause& pause) {
  FL_CO_CHECK(check_welcome(welcome));
  const bool is_other_method = !method_ || method_->strategy().spec() != welcome.strategy();
  const bool is_other_model = welcome.model() != model_;
  const bool is_other_run = welcome.run_key() != key_ || is_other_model || is_other_method;
  if (is_other_run) FL_CO_CHECK(co_await leave_for(welcome.run_key(), pause));
  if (is_other_model) FL_CO_CHECK(co_await load_model(welcome.model()));
  seed_ = welcome.seed();
  if (is_other_model || is_other_method) {
    method_.reset();
    FL_CO_TRY(method_, LocalMethod::make(welcome.strategy(), *trainer_, state_));
  }
  if (is_other_run) state_.set_own_tensors(method_->own_tensors(model_));
  trainer_->enter_run(key_);
  const bool is_same = layout().all.digest().raw() == welcome.layout_digest();
  if (is_same && !download_.has_version() && !worker_.is_busy()) {
    auto make = [this] { make_version_0(); };
    co_await worker_.step(std::move(make));
  }
  co_return success();
}

/// Forgets the run before, once its job has ended: that job uses trainer, layout and state.
Awaitable<Result<void>> JoinedRun::leave_for(std::string run_key, const Pause& pause) {
  if (!co_await worker_.end()) co_return Error(Errc::cancelled, "stopped");
  requests_.clear();
  download_.forget_run();
  initial_digest_.reset();
  auto enter = [this, &run_key]() -> Result<void> {
    FL_TRY(const bool is_another, state_.enter_run(run_key));
    if (is_another) download_.drop_part();
    return {};
  };
  auto entered = co_await worker_.step(enter);
  for (int i = 0; i < limits::full_disk_attempts_max && will_pass(entered); ++i) {
    if (i == 0) log_warn("{}; trying again", entered.error().message());
    if (!co_await pause()) co_return Error(Errc::cancelled, "stopped");
    entered = co_await worker_.step(enter);
  }
  FL_CO_CHECK(entered);
  key_ = std::move(run_key);
  co_return success();
}

/// Makes the trainer for another model.
Awaitable<Result<void>> JoinedRun::load_model(std::string model) {
  method_.reset();  // It belongs to the trainer before.
  model_.clear();
  auto make = [this, &model]() -> Result<std::unique_ptr<Trainer>> {
    coder_.reset();
    trainer_.reset();
    if (const auto builtin = builtin_layout(model))
      FL_CHECK(check_size(model, builtin->elements()));
    auto made = options_.factory(model);
    if (!made) return kept_here(made.error());
    FL_CHECK(check_size(model, (*made)->layout().elements()));
    return made;
  };
  FL_CO_TRY(trainer_, co_await worker_.step(std::move(make)));
  model_ = std::move(model);
  log_info("{}: {} parameters, {} training examples, {} held out", model_,
           trainer_->layout().elements(), trainer_->train_examples(), trainer_->holdout_examples());
  co_return success();
}

wire::Ready JoinedRun::ready(const wire::Welcome& welcome, bool is_evaluator) const {
  wire::Ready ready;
  if (masking_.is_masked()) {
    ready.set_train_examples(std::min<std::uint64_t>(trainer_->train_examples(), 1));
    return ready;
  }
  ready.set_train_examples(is_evaluator ? 0 : trainer_->train_examples());
  ready.set_holdout_examples(trainer_->holdout_examples());
  write_metric_kinds(trainer_->metrics(), *ready.mutable_metrics());
  // Later the model has what the server makes of them.
  if (welcome.version_digest().empty() && !is_evaluator)
    write_summaries(trainer_->summaries(), ready);
  return ready;
}

/// Makes version 0 of a built-in model from the run's seed, so that it need not be downloaded, and
/// is a base for deltas. If the run began with other weights, the digests tell.
void JoinedRun::make_version_0() {
  if (model_.starts_with(custom_prefix)) return;
  auto made = initial_values();
  if (!made) return;  // Then it is downloaded.
  download_.keep_version_0(*initial_digest_, std::move(*made));
}

/// Makes version 0, and sets initial_digest_.
Result<StoredValues> JoinedRun::initial_values() {
  FL_TRY(auto values, download_.models().pool().borrow(layout().all.elements()));
  FL_CHECK(method_->write_initial(seed_, values));
  initial_digest_ = Digest::of(std::as_bytes(values.values()));
  return values;
}

/// A trainer's error, as the server may be told of it. In a masked run its text stays here: it may
/// have figures of the data in it.
Error JoinedRun::kept_here(const Error& error) const {
  const bool is_passing = error.code() == Errc::cancelled || error.code() == Errc::no_space;
  if (!masking_.is_masked() || is_passing) return error;
  log_error("{}", error.message());
  return {error.code(), "its trainer has failed, and its log says why"};
}

// Working --------------------------------------------------------------------------------------

/// Checks whether the run's initial model is what this machine makes of (model, seed): if not, its
/// arithmetic or release differs, and its updates would be of another model.
Result<void> JoinedRun::check_initial(const wire::Offer& offer) {
  if (offer.initial_digest().empty()) return {};
  if (!initial_digest_) {
    FL_TRY(auto values, initial_values());
    download_.models().pool().give_back(std::move(values));
  }
  if (initial_digest_->raw() == offer.initial_digest()) return {};
  return Error(Errc::unauthenticated,
               fmt::format("this client makes other initial weights of '{}' and seed {} (digest "
                           "{}) than the run began with: "
                           "install the same release everywhere",
                           model_, seed_, initial_digest_->hex()));
}

JobDone JoinedRun::train(const wire::Offer& offer, const StoredValues& version,
                         std::stop_token stop) {
  JobDone done;
  done.result = train_and_code(offer, version, std::move(stop));
  if (!done.result) done.result = done.result.error().at(fmt::format("round {}", offer.round()));
  return done;
}

Result<void> JoinedRun::train_and_code(const wire::Offer& offer, const StoredValues& version,
                                       std::stop_token stop) {
  FL_CHECK(check_initial(offer));
  const auto codec = codec::parse_codec(offer.codec());
  if (!codec) return codec.error().at("the server's codec");
  auto settings = read_train_settings(offer);
  if (!settings) return settings.error().at("the server's optimizer");
  if (masking_.is_masked()) {
    FL_CHECK(masking_.check_version(version));
    settings->deadline_s = 0;  // Members' deadlines differ, so keys can't be bound to them.
  }
  FL_TRY(const auto inputs, inputs_of(offer, layout().all));
  wire::UploadBegin begin = begin_of(offer);
  FL_TRY(auto kept, method_->next_local_values(version, seed_));
  if (offer.evaluate_holdout() && !masking_.is_masked()) {
    FL_TRY(const auto measured, method_->evaluate(version, kept.values, stop));
    fill(begin, measured);
  }
  FL_TRY(auto update, download_.models().pool().borrow(layout().all.elements()));
  const TimePoint began = Clock::now();
  const auto worked =
      method_->train(*settings, version, kept.values, update, begin, std::move(stop));
  if (!worked) return kept_here(worked.error());
  failpoint("update.trained");
  trace_work(options_.trace, "train round", offer.round(), seconds(Clock::now() - began));
  if (masking_.is_masked()) FL_CHECK(masking_.begin(offer, begin.loss()));
  const TimePoint trained = Clock::now();
  const std::uint64_t before = coder_ ? coder_->results() : 0;
  FL_CHECK(state_.save_update(layout(), update, **codec, inputs, std::move(begin), std::move(kept),
                              method_->rule(), device_for(**codec)));
  trace_saving(options_.trace, state_.pending()->begin, seconds(Clock::now() - trained));
  download_.models().pool().give_back(std::move(update));
  const auto& saved = state_.pending()->begin;
  log_info(
      "round {}: trained {} steps on {} examples in {:.2f} s, loss {:.4f}; coded to {} bytes in "
      "{:.4f} s{}",
      offer.round(), saved.steps(), saved.examples(), saved.train_seconds(), saved.loss(),
      saved.bytes(), std::chrono::duration<double>(Clock::now() - trained).count(),
      coder_ && coder_->results() > before ? ", on the GPU" : "");
  return {};
}

/// The device that the update was trained on, if it can be coded there; and where the update lies
/// on it, if it is sent as the trainer has made it.
codec::DeviceCopy JoinedRun::device_for(const codec::Codec& codec) {
  const bool is_as_made = method_->rule() == nullptr && layout().personal_elements == 0 &&
                          !codec.error_feedback() && !codec.is_delta();
  if (!codec.is_for_device(layout().all, is_as_made)) return {};
  const float* const values = trainer_->update_on_device();
  if (values == nullptr) return {};
  if (!coder_) {
    auto device = trainer_->make_codec_device();
    if (!device) log_warn("updates are coded on the CPU: {}", device.error().message());
    coder_.emplace(device ? std::move(*device) : nullptr);
  }
  return {.coder = &*coder_, .values = is_as_made ? values : nullptr};
}

JobDone JoinedRun::evaluate(std::uint32_t number, const StoredValues& version,
                            std::stop_token stop) {
  JobDone done;
  wire::Evaluation evaluation;
  evaluation.set_version(number);
  const TimePoint began = Clock::now();
  const auto measure = [&]() -> Result<void> {
    FL_TRY(const auto kept, method_->own_values(version, seed_));
    FL_TRY(const auto measured, method_->evaluate(version, kept, std::move(stop)));
    evaluation.set_examples(measured.model.examples);
    evaluation.set_loss(measured.model.loss);
    if (measured.model.predictions) evaluation.set_predictions(*measured.model.predictions);
    write_metrics(measured.model.metrics, *evaluation.mutable_metrics());
    if (!measured.own) return {};
    evaluation.set_own_loss(measured.own->loss);
    write_metrics(measured.own->metrics, *evaluation.mutable_own_metrics());
    return {};
  };
  done.result = measure();
  trace_work(options_.trace, "evaluate version", number, seconds(Clock::now() - began));
  if (!done.result)
    done.result = done.result.error().at(fmt::format("evaluation of version {}", number));
  done.evaluation = std::move(evaluation);
  return done;
}

}  // namespace fl::client
