// What the agent's worker thread does: train and code, evaluate, make initial weights.
#include "client/agent.hpp"
#include "shared/base/failpoint.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace fl {

Agent::JobDone Agent::train(const wire::Offer& offer, std::span<const float> model,
                            std::stop_token stop) {
  JobDone done;
  const auto work = [&]() -> Result<void> {
    FL_CHECK(check_initial(offer));
    auto codec = parse_codec(offer.codec());
    if (!codec) return codec.error().at("the server's codec");
    TrainSettings settings;
    settings.round = offer.round();
    settings.local_epochs = offer.local_epochs();
    settings.local_steps = offer.local_steps();
    settings.batch_size = offer.batch_size();
    settings.lr = offer.lr();
    settings.momentum = offer.momentum();
    settings.weight_decay = offer.weight_decay();
    settings.proximal_mu = offer.proximal_mu();
    settings.seed = offer.seed();

    wire::Begin begin;
    begin.set_purpose(wire::UPDATE);
    begin.set_task(offer.task());
    begin.set_round(offer.round());
    begin.set_version(offer.version());
    begin.set_layout_digest(trainer_->layout().digest().raw());
    begin.set_codec(offer.codec());
    if (offer.evaluate_holdout()) {
      FL_TRY(const EvalReport holdout, trainer_->evaluate(model, stop));
      begin.set_has_holdout(holdout.examples > 0);
      begin.set_holdout_examples(holdout.examples);
      begin.set_holdout_loss(holdout.loss);
      begin.set_holdout_accuracy(holdout.accuracy);
    }
    auto update = models_.borrow(trainer_->layout().elements());
    FL_TRY(const TrainReport report, trainer_->train(model, settings, update, stop));
    begin.set_examples(report.examples);
    begin.set_steps(report.steps);
    begin.set_loss(report.loss);
    begin.set_train_seconds(report.seconds);
    failpoint("update.trained");
    const TimePoint trained = Clock::now();
    FL_CHECK(state_->save_update(trainer_->layout(), update, **codec, offer.seed(), begin));
    models_.give_back(std::move(update));
    spdlog::info(
        "round {}: trained {} steps on {} examples in {:.2f} s, loss {:.4f}; coded to {} bytes in "
        "{:.4f} s",
        offer.round(), report.steps, report.examples, report.seconds, report.loss,
        state_->pending()->begin.bytes(),
        std::chrono::duration<double>(Clock::now() - trained).count());
    return {};
  };
  done.result = work();
  if (!done.result) done.result = done.result.error().at(fmt::format("round {}", offer.round()));
  return done;
}

/// Whether the run's initial model is what this machine makes of (model, seed): if not, its
/// arithmetic or release differs, and its updates would be of another model.
Result<void> Agent::check_initial(const wire::Offer& offer) {
  if (offer.initial_digest().empty()) return {};
  if (!initial_digest_) {
    const auto values = trainer_->initial_weights(seed_);
    initial_digest_ = Digest::of(std::as_bytes(std::span(values)));
  }
  if (initial_digest_->raw() == offer.initial_digest()) return {};
  return Error(Errc::unauthenticated,
               fmt::format("this client makes other initial weights of '{}' and seed {} (digest "
                           "{}) than the run began with: "
                           "install the same release everywhere",
                           model_, seed_, initial_digest_->hex()));
}

Agent::JobDone Agent::evaluate(std::uint32_t version, std::span<const float> model,
                               std::stop_token stop) {
  JobDone done;
  wire::Evaluation evaluation;
  evaluation.set_version(version);
  auto report = trainer_->evaluate(model, stop);
  if (report) {
    evaluation.set_examples(report->examples);
    evaluation.set_loss(report->loss);
    evaluation.set_accuracy(report->accuracy);
  } else {
    done.result = report.error().at(fmt::format("evaluation of version {}", version));
  }
  done.evaluation = std::move(evaluation);
  return done;
}

/// What the run's seed makes is version 0 of most runs: it need not be downloaded, and is a base
/// for deltas. Where the run began with other weights, the digests tell.
void Agent::make_version_0() {
  auto values = trainer_->initial_weights(seed_);
  replica_.digest = Digest::of(std::as_bytes(std::span(std::as_const(values))));
  replica_.version = 0;
  replica_.is_there = true;
  initial_digest_ = replica_.digest;
  models_.keep(replica_.digest, std::move(values));
}

Agent::JobDone Agent::make_initial(std::uint64_t seed) {
  JobDone done;
  done.is_initial = true;
  const auto work = [&]() -> Result<void> {
    auto values = trainer_->initial_weights(seed);
    initial_digest_ = Digest::of(std::as_bytes(std::span(values)));
    wire::Begin begin;
    begin.set_purpose(wire::INITIAL);
    begin.set_layout_digest(trainer_->layout().digest().raw());
    begin.set_codec("none");
    FL_TRY(const auto codec, parse_codec("none"));
    return state_->save_update(trainer_->layout(), values, *codec, seed, begin);
  };
  done.result = work();
  return done;
}

}  // namespace fl
