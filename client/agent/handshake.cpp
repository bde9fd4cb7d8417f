// SPDX-License-Identifier: Apache-2.0
// How an agent begins a connection: from Hello over the server's Welcome to Ready.
#include "client/agent/agent.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/version.hpp"
#include "shared/codec/spec/table.hpp"
#include "shared/wire/metric_messages.hpp"
#include "shared/wire/summary_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t run_key_digits = 16;

/// The Bye of a client that can't take part in the run. `others`: its tensors, if they are not the
/// run's; else null.
wire::Header parting(std::string reason, const Layout* others) {
  wire::Header header;
  auto& bye = *header.mutable_bye();
  bye.set_cause(wire::Bye::LEAVING);
  bye.set_reason(std::move(reason));
  if (others == nullptr) return header;
  std::size_t bytes = 0;
  for (const Layout::Tensor& own : others->tensors()) {
    wire::Tensor tensor;
    tensor.set_name(own.name);
    tensor.mutable_shape()->Add(own.shape.begin(), own.shape.end());
    bytes += tensor.ByteSizeLong() + 8;  // With its length and tag.
    if (bytes > limits::tensors_told_bytes_max) {
      bye.set_has_more_tensors(true);
      break;
    }
    *bye.add_tensors() = std::move(tensor);
  }
  return header;
}

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

}  // namespace

/// While no run is on, the server ends each session after Hello. A client that waits for the next
/// run may wait longer than its certificate lives, so it renews before Hello.
Awaitable<Result<void>> Agent::renew_between_runs() {
  FL_CO_CHECK(co_await check_renewal());
  if (!wants_renewal_) co_return success();
  FL_CO_TRY(Message answer, co_await link_->receive());
  if (answer.header.has_renewed()) co_return co_await handle(std::move(answer));
  const std::string reason = shown_reason(answer.header.bye().reason());
  co_return Error(Errc::unavailable, "this client's certificate was not renewed: " + reason);
}

/// Sends Hello, receives Welcome, loads model and data, and sends Ready.
Awaitable<Result<void>> Agent::shake_hands() {
  wire::Header header;
  auto& hello = *header.mutable_hello();
  hello.set_protocol(protocol_version);
  hello.set_software(std::string("tributary ") + software_version);
  hello.set_evaluator(options_.evaluator);
  hello.set_model(options_.model);
  for (const auto& row : codec_rows()) hello.add_codecs(std::string(row.name));
  hello.add_codecs(std::string(delta_codec));
  FL_CO_CHECK(co_await send(std::move(header)));

  FL_CO_TRY(const Message answer, co_await link_->receive());
  if (answer.header.has_bye()) {
    const auto& bye = answer.header.bye();
    const std::string reason = shown_reason(bye.reason());
    if (bye.cause() == wire::Bye::FINISHED) co_return Error(Errc::cancelled, reason);
    if (bye.cause() != wire::Bye::REFUSED) co_return Error(Errc::unavailable, reason);
    co_return Error(Errc::unauthenticated, "the server rejected this client: " + reason);
  }
  if (!answer.header.has_welcome()) {
    co_return Error(Errc::protocol,
                    fmt::format("the server answered Hello with {}", kind_name(answer.header)));
  }
  const wire::Welcome& welcome = answer.header.welcome();
  authorities_ = welcome.authorities();
  auto ready = co_await prepare(welcome);
  const bool has_others = ready && layout_.all.digest().raw() != welcome.layout_digest();
  if (has_others)
    ready = Error(Errc::invalid_input,
                  fmt::format("the run's model '{}' has other tensors than this client's", model_));
  // Tell the server the reason only once per run, because it records it in its history. run_key_
  // is another run's while this one can't be entered.
  const std::string& run = welcome.run_key();
  const bool is_told = !ready && !run.empty() && told_run_ == run;
  told_run_ = ready ? "" : run;
  if (is_told) co_return ready.error();
  if (!ready) {
    auto bye = parting(shown_reason(ready.error().message()), has_others ? &layout_.all : nullptr);
    const auto sent = co_await send(std::move(bye));
    if (!sent || !has_others) co_return ready.error();
    // The server's answer names the tensors that differ.
    const auto last = co_await link_->receive();
    if (!last || last->header.bye().cause() != wire::Bye::REFUSED) co_return ready.error();
    co_return Error(ready.error().code(), shown_reason(last->header.bye().reason()));
  }
  wire::Header next;
  next.mutable_ready()->set_train_examples(options_.evaluator ? 0 : trainer_->train_examples());
  next.mutable_ready()->set_holdout_examples(trainer_->holdout_examples());
  write_metric_kinds(trainer_->metrics(), *next.mutable_ready()->mutable_metrics());
  // Later the model has what the server makes of them.
  if (welcome.version_digest().empty() && !options_.evaluator)
    write_summaries(trainer_->summaries(), *next.mutable_ready());
  co_return co_await send(std::move(next));
}

/// Checks the texts of a Welcome before they are used: in file names, in messages.
Result<void> Agent::check_welcome(const wire::Welcome& welcome) {
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

/// Checks how large a model is, before memory for its values is taken.
Result<void> Agent::check_size(const std::string& model, std::uint64_t parameters) const {
  if (parameters <= options_.parameters_max) return {};
  return Error(Errc::invalid_input,
               fmt::format("the server's model '{}' has {} parameters, and this client takes at "
                           "most {}: if you expect such a model, start with --max-parameters {}",
                           printable(model), parameters, options_.parameters_max, parameters));
}

/// Gets ready for the run that the Welcome describes: state, trainer, strategy, version 0.
Awaitable<Result<void>> Agent::prepare(const wire::Welcome& welcome) {
  FL_CO_CHECK(check_welcome(welcome));
  const bool is_other_method = !strategy_ || strategy_->spec() != welcome.strategy();
  const bool is_other_model = welcome.model() != model_;
  const bool is_other_run = welcome.run_key() != run_key_ || is_other_model || is_other_method;
  if (is_other_run) FL_CO_CHECK(co_await enter_run(welcome.run_key()));
  if (is_other_model) FL_CO_CHECK(co_await load_model(welcome.model()));
  seed_ = welcome.seed();
  if (is_other_model || is_other_method) {
    auto strategy = parse_strategy(welcome.strategy());
    if (!strategy) co_return strategy.error().at("this client can't use the run's strategy");
    FL_CO_TRY(layout_, run_layout(trainer_->layout(), **strategy));
    strategy_ = std::move(*strategy);
  }
  if (is_other_run) state_->set_own_tensors(own_tensors());
  FL_CO_CHECK(check_abilities(*strategy_, *trainer_));
  trainer_->enter_run(run_key_);
  const bool is_same = layout_.all.digest().raw() == welcome.layout_digest();
  if (is_same && !replica_.is_there && !has_job_) {
    auto make = [this] { make_version_0(); };
    co_await worker_.run(std::move(make));
  }
  co_return success();
}

/// Forgets the run before, once its job has ended: that job uses trainer, layout and state.
Awaitable<Result<void>> Agent::enter_run(std::string run_key) {
  if (!co_await end_job()) co_return Error(Errc::cancelled, "stopped");
  offer_.reset();
  evaluate_.clear();
  download_.reset();
  replica_ = Replica();
  initial_digest_.reset();
  run_initial_.clear();
  auto enter = [this, &run_key]() -> Result<void> {
    FL_TRY(const bool is_another, state_->enter_run(run_key));
    if (is_another) partial_->drop();
    return {};
  };
  auto entered = co_await worker_.run(enter);
  for (int i = 0; i < limits::full_disk_attempts_max && will_pass(entered); ++i) {
    if (i == 0) log_warn("{}; trying again", entered.error().message());
    if (!co_await pause_for_disk()) co_return Error(Errc::cancelled, "stopped");
    entered = co_await worker_.run(enter);
  }
  FL_CO_CHECK(entered);
  run_key_ = std::move(run_key);
  co_return success();
}

Awaitable<bool> Agent::pause_for_disk() {
  const TimePoint until = Clock::now() + limits::full_disk_pause;
  while (!stopping_ && Clock::now() < until) co_await stopped_.wait(until);
  co_return !stopping_;
}

/// Makes the trainer for another model.
Awaitable<Result<void>> Agent::load_model(std::string model) {
  strategy_.reset();  // Its layout belongs to the old model.
  auto make = [this, &model]() -> Result<std::unique_ptr<Trainer>> {
    coder_.reset();
    FL_TRY(auto made, factory_(model));
    FL_CHECK(check_size(model, made->layout().elements()));
    return made;
  };
  auto made = co_await worker_.run(std::move(make));
  if (!made) {
    model_.clear();
    // A client that stays, and has been connected before, waits for a run that it can take part in.
    const bool may_wait = options_.stay && connection_ > 0;
    if (!may_wait || made.error().code() != Errc::invalid_input) co_return made.error();
    const std::string reason =
        fmt::format("this run is not for this client: {}", made.error().message());
    if (told_run_ != run_key_) log_warn("{}; waiting for the next run", reason);
    co_return Error(Errc::unavailable, reason);
  }
  trainer_ = std::move(*made);
  model_ = std::move(model);
  log_info("{}: {} parameters, {} training examples, {} held out", model_,
           trainer_->layout().elements(), trainer_->train_examples(), trainer_->holdout_examples());
  co_return success();
}

}  // namespace fl
