// SPDX-License-Identifier: Apache-2.0
#include "client/agent/agent.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/features.hpp"
#include "shared/wire/metric_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

namespace fl::client {

namespace {

constexpr auto renewal_check = std::chrono::hours(1);

/// Whether the error ends the agent. Other errors end only the connection.
bool is_final(const Error& error) {
  switch (error.code()) {
    case Errc::unavailable:
    case Errc::deadline:
    case Errc::no_space:
    case Errc::protocol:
    case Errc::too_large: return false;
    default: return true;
  }
}

/// An evaluator would wait for ever for a server that asks none.
Result<void> check_server(bool is_evaluator, const Features& server) {
  return is_evaluator ? demand(server, End::server, Feature::evaluation, "an evaluator")
                      : success();
}

/// The client waits for another run.
Error not_for_this_client(const Error& why) {
  return {Errc::unavailable, "this run is not for this client: " + why.message()};
}

}  // namespace

Agent::Agent(net::any_io_executor strand, Connector& connector, IdentityKeeper* keeper,
             Files& files, std::filesystem::path folder, TrainerFactory factory, Offload& offload,
             Options options)
    : connector_(connector),
      options_(std::move(options)),
      stopped_(strand),
      group_(strand),
      events_(strand, agent_events_max),
      worker_(offload, group_, events_),
      state_(files, std::move(folder), options_.threads),
      conversation_(keeper, options_.secure && !options_.evaluator),
      download_(worker_, state_.scratch(), options_.models, options_.threads, options_.trace),
      upload_(worker_, state_, options_.trace),
      masking_(options_.secure, worker_, state_, upload_, conversation_),
      run_({std::move(factory), options_.parameters_max, options_.trace}, worker_, state_,
           download_, requests_, masking_) {}

Agent::~Agent() = default;

void Agent::stop() {
  stopping_ = true;
  worker_.request_stop();
  stopped_.notify();
  events_.close();
}

Awaitable<Result<Agent::Outcome>> Agent::run() {
  FL_CO_CHECK(state_.load());
  FL_CO_CHECK(masking_.load());
  FL_CO_CHECK(download_.open(state_.files(), state_.folder()));
  auto outcome = co_await reconnect();
  if (stopping_) outcome = Outcome::stopped;
  worker_.request_stop();
  events_.close();
  co_await group_.join();
  worker_.joined();
  if (stopping_) co_await download_.save_before_end();
  co_await export_own_tensors();
  state_.drop_spares();
  co_return outcome;
}

// Connections ----------------------------------------------------------------------------------

/// Connects and serves, again and again.
Awaitable<Result<Agent::Outcome>> Agent::reconnect() {
  Result<Outcome> outcome = Outcome::stopped;
  std::minstd_rand jitter(static_cast<std::minstd_rand::result_type>(options_.jitter_seed));
  int failures = 0;
  Attempts attempts(options_.patience);
  std::uint64_t over_at = 0;  // The connection for which the end of the run was logged.
  while (!stopping_) {
    auto link = co_await connector_.connect();
    if (link && stopping_) (*link)->close();
    if (stopping_) break;
    if (link) {
      const TimePoint began = Clock::now();
      outcome = co_await serve(*link);
      conversation_.close();
      attempts.succeeded();
      if (stopping_) break;
      // A connection that ends soon does not reset the backoff: another client with the same
      // identity may have replaced it.
      if (Clock::now() - began >= limits::connection_settled) failures = 0;
    } else {
      outcome = link.error();
      attempts.failed();
    }
    const bool is_over = outcome && *outcome == Outcome::finished;
    if (is_over && std::exchange(over_at, conversation_.number()) != conversation_.number())
      log_info("the run is over{}", options_.stay ? "; waiting for the next one" : "");
    if (is_over && !options_.stay) break;
    if (!outcome && is_final(outcome.error())) break;
    if (!link && attempts.is_over()) {
      log_error("{}", attempts.text(outcome.error()));
      co_return Outcome::gave_up;
    }
    const bool is_worth_a_line = failures == 0 || failures % 10 == 0;
    if (!outcome && is_worth_a_line) log_warn("{}; trying again", outcome.error().message());
    const double part =
        static_cast<double>(jitter()) / static_cast<double>(std::minstd_rand::max());
    const TimePoint latest = link ? never : attempts.latest();
    co_await wait(std::min(latest, Clock::now() + backoff_pause(failures, part)));
    ++failures;
  }
  co_return outcome;
}

/// Returns at that time, or when the agent is stopped.
Awaitable<void> Agent::wait(TimePoint until) {
  while (!stopping_ && Clock::now() < until) co_await stopped_.wait(until);
}

Awaitable<Result<Agent::Outcome>> Agent::serve(std::shared_ptr<Link> link) {
  download_.connection_lost();
  upload_.connection_lost();
  FL_CO_CHECK(co_await conversation_.begin(std::move(link)));
  const bool was_connected = conversation_.number() > 0;
  const auto shaken = co_await shake_hands();
  if (!shaken && shaken.error().code() == Errc::cancelled && !stopping_) {
    // The run ended while this client was not connected. A client that was never part of the run
    // waits for the next one.
    if (was_connected) co_return Outcome::finished;
    co_return Error(Errc::unavailable, shaken.error().message());
  }
  FL_CO_CHECK(shaken);
  group_.spawn(conversation_.listen(events_));
  const auto outcome = co_await answer_requests();
  // Nobody is to wait for a client that its own error ends.
  if (!outcome && !stopping_ && is_final(outcome.error()))
    co_await conversation_.leave(outcome.error().message());
  co_return outcome;
}

/// Sends Hello, receives Welcome, enters the run, and sends Ready.
Awaitable<Result<void>> Agent::shake_hands() {
  wire::Hello hello;
  hello.set_evaluator(options_.evaluator);
  hello.set_model(options_.model);
  hello.set_data(options_.data);
  hello.set_tensors(options_.tensors);
  const auto answer = co_await conversation_.hello(std::move(hello));
  // A client that stays, and has been part of a run, waits for one that it can train.
  const bool may_wait = options_.stay && conversation_.number() > 0;
  if (!answer && answer.error().code() == Errc::unauthenticated && may_wait)
    co_return not_for_this_client(answer.error());
  FL_CO_TRY(const wire::Welcome welcome, answer);
  auto entered = check_server(options_.evaluator, conversation_.server_features());
  bool is_unfit = false;
  if (entered && !options_.evaluator) {
    entered = co_await masking_.join(welcome);
    is_unfit = !entered && entered.error().code() == Errc::invalid_input;
  }
  const JoinedRun::Pause pause = [this]() -> Awaitable<bool> {
    co_await wait(Clock::now() + limits::full_disk_pause);
    co_return !stopping_;
  };
  if (entered) entered = co_await run_.enter(welcome, pause);
  const bool has_others = entered && run_.layout().all.digest().raw() != welcome.layout_digest();
  if (has_others)
    entered = Error(
        Errc::invalid_input,
        fmt::format("the run's model '{}' has other tensors than this client's", run_.model()));
  if (entered) {
    auto ready = run_.ready(welcome, options_.evaluator);
    co_return co_await conversation_.ready(std::move(ready));
  }
  is_unfit = is_unfit || has_others ||
             (run_.lacks_model() && entered.error().code() == Errc::invalid_input);
  const bool waits = is_unfit && may_wait;
  const bool is_known = conversation_.has_declined(welcome.run_key());
  Error told = entered.error();
  if (waits) told = not_for_this_client(told);
  const Layout* const others = has_others ? &run_.layout().all : nullptr;
  const Error why = co_await conversation_.decline(welcome.run_key(), std::move(told), others);
  if (waits && !is_known) log_warn("{}; waiting for the next run", why.message());
  co_return why;
}

Awaitable<Result<Agent::Outcome>> Agent::answer_requests() {
  TimePoint renewal_at = Clock::now();
  while (!stopping_) {
    if (Clock::now() >= renewal_at) {
      FL_CO_CHECK(co_await conversation_.check_renewal());
      renewal_at = Clock::now() + renewal_check;
    }
    FL_CO_CHECK(co_await advance());
    if (upload_.can_send() && events_.empty()) {
      FL_CO_CHECK(co_await upload_.send_some(conversation_));
      continue;
    }
    TimePoint wake_at = std::min(renewal_at, upload_.announce_at());
    if (worker_.is_paused()) wake_at = std::min(wake_at, worker_.paused_until());
    auto event = co_await events_.pop(wake_at);
    if (!event) continue;
    if (auto* done = std::get_if<JobDone>(&*event)) {
      FL_CO_CHECK(co_await finish_job(std::move(*done)));
      continue;
    }
    auto& arrival = std::get<Arrival>(*event);
    if (arrival.connection != conversation_.number()) continue;  // From an earlier connection.
    if (!arrival.message) co_return arrival.message.error();
    if (arrival.message->header.has_bye()) {
      const auto& bye = arrival.message->header.bye();
      if (bye.cause() != wire::Bye::FINISHED) co_return error_of(bye);
      co_await leave_run();
      co_return Outcome::finished;
    }
    FL_CO_CHECK(co_await handle(std::move(*arrival.message)));
  }
  co_await conversation_.leave();
  co_return Outcome::stopped;
}

/// Ends this client's part in a finished run, then answers the server's Bye. The server waits for
/// that answer, so that a client that is killed before it can still reconnect and hear of the end.
Awaitable<void> Agent::leave_run() {
  const bool has_ended = co_await worker_.end();
  if (has_ended) {
    state_.drop_spares();
    if (options_.stay) co_await export_own_tensors();  // Otherwise run() does it at its end.
  }
  co_await conversation_.leave();
}

/// Writes this client's own tensors to a file. No job may be running. After a failure the values
/// are still in the state.
Awaitable<void> Agent::export_own_tensors() {
  auto work = [this] { return state_.export_own_tensors(); };
  const auto path = co_await worker_.step(std::move(work));
  if (!path) log_warn("{}", path.error().message());
  if (path && !path->empty()) log_info("wrote this client's own tensors to {}", path->string());
}

// Choosing what is next -------------------------------------------------------------------------

/// Begins the next thing that can begin now. At most one thing is under way: a job, a download or
/// an upload.
Awaitable<Result<void>> Agent::advance() {
  if (worker_.is_busy() || download_.is_on()) co_return success();
  if (!upload_.is_on() && !worker_.is_paused())
    FL_CO_CHECK(co_await masking_.prepare(run_.layout()));
  if (Clock::now() >= upload_.announce_at()) FL_CO_CHECK(co_await masking_.announce());
  // Don't fetch during an upload: if both ends send and wait for room, neither reads.
  if (upload_.is_on() || worker_.is_paused()) co_return success();
  if (const auto& offer = requests_.offer()) {
    const auto model = download_.find(offer->version(), offer->version_digest());
    if (!model) co_return co_await fetch(offer->version());
    worker_.start(offer->task(), [this, task = *offer, model](std::stop_token stop) {
      return run_.train(task, *model, std::move(stop));
    });
  } else if (requests_.has_evaluation()) {
    const wire::Evaluate wanted = requests_.evaluation();
    const auto model = download_.find(wanted.version(), wanted.version_digest());
    if (!model) co_return co_await fetch(wanted.version());
    requests_.drop_evaluation();
    worker_.start(0, [this, version = wanted.version(), model](std::stop_token stop) {
      return run_.evaluate(version, *model, std::move(stop));
    });
  }
  co_return success();
}

Awaitable<Result<void>> Agent::fetch(std::uint32_t version) {
  auto request = download_.request(version);
  co_return co_await conversation_.send(std::move(request));
}

/// A kind of message that a server may send to a client that is ready. Bye ends the connection.
/// Every other message breaks the protocol.
struct Agent::MessageRow {
  wire::Header::KindCase kind;
  Awaitable<Result<void>> (Agent::*handle)(Message& message);

  [[nodiscard]] static const MessageRow* find(wire::Header::KindCase kind) {
    static constexpr MessageRow rows[] = {
        {wire::Header::kOffer, &Agent::take_offer},
        {wire::Header::kEvaluate, &Agent::take_evaluate},
        {wire::Header::kModel, &Agent::begin_download},
        {wire::Header::kChunk, &Agent::take_chunk},
        {wire::Header::kResume, &Agent::resume_upload},
        {wire::Header::kVerdict, &Agent::take_verdict},
        {wire::Header::kFailed, &Agent::take_failure},
        {wire::Header::kRenewed, &Agent::take_renewal},
        {wire::Header::kNotice, &Agent::take_notice},
        {wire::Header::kSecureCohort, &Agent::take_masking},
        {wire::Header::kSecureInbox, &Agent::take_masking},
        {wire::Header::kSecureSurvivors, &Agent::take_masking},
        {wire::Header::kSecureAsk, &Agent::take_masking},
    };
    const auto* const found = std::ranges::find(rows, kind, &MessageRow::kind);
    return found == std::end(rows) ? nullptr : found;
  }
};

Awaitable<Result<void>> Agent::handle(Message message) {
  const MessageRow* const row = MessageRow::find(message.header.kind_case());
  if (row == nullptr) {
    co_return Error(Errc::protocol,
                    fmt::format("a server may not send {}", kind_name(message.header)));
  }
  co_return co_await (this->*row->handle)(message);
}

/// A newer offer takes the place of the one before, unless this client works on it already.
Awaitable<Result<void>> Agent::take_offer(Message& message) {
  if (options_.evaluator) co_return Error(Errc::protocol, "an evaluator is offered a task");
  wire::Offer& offer = *message.header.mutable_offer();
  FL_CO_CHECK(requests_.complete(offer));
  if (auto fits = masking_.check(offer); !fits) {
    JobDone refused;
    refused.task = offer.task();
    refused.result = fits.error().at(fmt::format("round {}", offer.round()));
    co_return co_await report_failure(refused);
  }
  const bool is_made =
      !worker_.is_busy() && state_.pending() && state_.pending()->begin.task() == offer.task();
  const bool is_being_made = worker_.task() == offer.task() && worker_.is_busy();
  if (is_made || is_being_made) co_return co_await masking_.take_again(offer);
  if (worker_.task() != 0) worker_.request_stop();  // The server has moved on.
  log_info("round {}: asked to train from version {}", offer.round(), offer.version());
  requests_.keep(std::move(offer));
  co_return success();
}

Awaitable<Result<void>> Agent::take_evaluate(Message& message) {
  if (masking_.is_masked()) {
    log_warn("not evaluated: in a masked run this client says nothing of its data in the clear");
    co_return success();
  }
  requests_.add(message.header.evaluate());
  co_return success();
}

Awaitable<Result<void>> Agent::begin_download(Message& message) {
  FL_CO_TRY(const std::uint64_t bytes,
            co_await download_.begin(message.header.model(), run_.layout().all));
  conversation_.link().expect_bulk(bytes);
  co_return success();
}

Awaitable<Result<void>> Agent::take_chunk(Message& message) {
  co_return co_await download_.take(message, run_.layout().all);
}

Awaitable<Result<void>> Agent::resume_upload(Message& message) {
  co_return co_await upload_.resume(message.header.resume());
}

Awaitable<Result<void>> Agent::take_verdict(Message& message) {
  const wire::Verdict& verdict = message.header.verdict();
  FL_CO_TRY(const bool is_end, co_await upload_.take_verdict(verdict, run_.layout()));
  // The server may have offered the task again meanwhile.
  if (is_end) requests_.forget_offer(verdict.task());
  co_return success();
}

Awaitable<Result<void>> Agent::take_masking(Message& message) {
  co_return co_await masking_.take(message.header);
}

/// The server can't send the version that it was asked for.
Awaitable<Result<void>> Agent::take_failure(Message& message) {
  download_.failed();
  requests_.forget_version(message.header.failed().version());
  co_return success();
}

Awaitable<Result<void>> Agent::take_renewal(Message& message) {
  co_return conversation_.take_renewal(message.header.renewed());
}

Awaitable<Result<void>> Agent::take_notice(Message& message) {
  conversation_.take_notice(message.header.notice());
  co_return success();
}

Awaitable<Result<void>> Agent::finish_job(JobDone done) {
  worker_.finished();
  if (!done.result) co_return co_await report_failure(done);
  requests_.forget_offer(done.task);
  if (!done.evaluation) co_return success();
  log_info("version {}: {}, {} examples", done.evaluation->version(),
           metrics_text(read_metrics(done.evaluation->metrics()), done.evaluation->loss()),
           done.evaluation->examples());
  wire::Header header;
  *header.mutable_evaluation() = *done.evaluation;
  co_return co_await conversation_.send(std::move(header));
}

/// Tells the server why a job failed, unless it can be done again.
Awaitable<Result<void>> Agent::report_failure(const JobDone& done) {
  const auto& error = done.result.error();
  if (error.code() == Errc::cancelled) co_return success();
  if (error.code() == Errc::no_space) {
    log_warn("{}; trying again", error.message());
    worker_.pause_for_disk();
    co_return success();
  }
  wire::Header header;
  header.mutable_failed()->set_task(done.task);
  if (done.evaluation) header.mutable_failed()->set_version(done.evaluation->version());
  header.mutable_failed()->set_reason(shown_reason(error.message()));
  const auto sent = co_await conversation_.send(std::move(header));
  if (error.code() != Errc::invalid_input) co_return error;
  // This task can't be done, but the next one may work.
  log_warn("{}", error.message());
  requests_.forget_offer(done.task);
  co_return sent;
}

}  // namespace fl::client
