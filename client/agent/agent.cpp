// SPDX-License-Identifier: Apache-2.0
// The agent's main loop: connections, events, and the choice of what to do next. handshake.cpp has
// the beginning of a connection, transfer.cpp the uploads and downloads, jobs.cpp the work of the
// worker thread.
#include "client/agent/agent.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/wire/metric_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t events_max = 2;  // Few, because each may hold a chunk.
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

}  // namespace

Agent::Agent(net::any_io_executor strand, Connector& connector, IdentityKeeper* keeper,
             Files& files, std::filesystem::path folder, TrainerFactory factory, Offload& worker,
             Options options)
    : strand_(std::move(strand)),
      connector_(connector),
      keeper_(keeper),
      files_(files),
      folder_(std::move(folder)),
      factory_(std::move(factory)),
      worker_(worker),
      options_(std::move(options)),
      jitter_(static_cast<std::minstd_rand::result_type>(options_.jitter_seed)),
      events_(strand_, events_max),
      stopped_(strand_),
      group_(strand_),
      models_(options_.models != nullptr ? *options_.models : own_models_) {}

Agent::~Agent() = default;

std::string Agent::shown_reason(std::string_view text) {
  return printable(text, limits::reason_bytes_max);
}

Result<void> Agent::check_length(std::string_view what, std::string_view text,
                                 std::size_t bytes_max) {
  if (text.size() <= bytes_max) return {};
  return Error(Errc::protocol,
               fmt::format("the name of the server's {} has {} bytes; the limit is {}", what,
                           text.size(), bytes_max));
}

void Agent::stop() {
  stopping_ = true;
  job_stop_.request_stop();
  stopped_.notify();
  events_.close();
}

Awaitable<Result<Agent::Outcome>> Agent::run() {
  Result<Outcome> outcome = Outcome::stopped;
  int failures = 0;
  Attempts attempts(options_.patience);
  std::uint64_t over_at = 0;  // The connection for which the end of the run was logged.
  auto opened = ClientState::open(files_, folder_, options_.threads);
  if (!opened) co_return opened.error();
  state_ = std::move(*opened);
  auto partial = ResumableDownload::open(files_, folder_);
  if (!partial) co_return partial.error();
  partial_ = std::move(*partial);
  while (!stopping_) {
    auto link = co_await connector_.connect();
    if (link && stopping_) (*link)->close();
    if (stopping_) break;
    if (link) {
      const TimePoint began = Clock::now();
      outcome = co_await serve(*link);
      (*link)->close();
      link_.reset();
      attempts.succeeded();
      if (stopping_) break;
      // A connection that ends soon does not reset the backoff: another client with the same
      // identity may have replaced it.
      if (Clock::now() - began >= limits::connection_settled) failures = 0;
    } else {
      outcome = link.error();
      attempts.failed();
    }
    if (outcome && *outcome == Outcome::finished &&
        std::exchange(over_at, connection_) != connection_)
      log_info("the run is over{}", options_.stay ? "; waiting for the next one" : "");
    if (outcome && *outcome == Outcome::finished && !options_.stay) break;
    if (!outcome && is_final(outcome.error())) break;
    if (!link && attempts.is_over()) {
      log_error("{}", attempts.text(outcome.error()));
      outcome = Outcome::gave_up;
      break;
    }
    if (!outcome) {
      const bool worth_a_line = failures == 0 || failures % 10 == 0;
      if (worth_a_line) log_warn("{}; trying again", outcome.error().message());
    }
    co_await back_off(failures, link ? never : attempts.latest());
    ++failures;
  }
  if (stopping_) outcome = Outcome::stopped;
  job_stop_.request_stop();
  events_.close();
  co_await group_.join();
  if (stopping_ && download_ && download_->save_at != never) co_await save_download();
  co_await export_own_tensors();
  state_->drop_spare();
  co_return outcome;
}

Awaitable<void> Agent::back_off(int attempt, TimePoint latest) {
  const double part = static_cast<double>(jitter_()) / static_cast<double>(std::minstd_rand::max());
  const TimePoint until = std::min(latest, Clock::now() + backoff_pause(attempt, part));
  while (!stopping_ && Clock::now() < until) co_await stopped_.wait(until);
}

Awaitable<void> Agent::read_all(std::shared_ptr<Link> link, std::uint64_t connection) {
  for (;;) {
    auto message = co_await link->receive();
    Arrival arrival{connection, std::move(message)};
    const bool is_end = !arrival.message;
    Event event(std::move(arrival));
    if (!co_await events_.push_waiting(std::move(event)) || is_end) co_return;
  }
}

Awaitable<Result<Agent::Outcome>> Agent::serve(std::shared_ptr<Link> link) {
  link_ = link;
  is_fetching_ = false;
  sending_.reset();
  wants_renewal_ = false;
  if (std::exchange(is_between_runs_, false)) FL_CO_CHECK(co_await renew_between_runs());
  const auto shaken = co_await shake_hands();
  is_between_runs_ = !shaken && shaken.error().code() == Errc::cancelled;
  // The run ended while this client was not connected. A client that was never part of the run
  // waits for the next one.
  const bool is_over = !shaken && shaken.error().code() == Errc::cancelled && !stopping_;
  if (is_over && connection_ > 0) co_return Outcome::finished;
  if (is_over) co_return Error(Errc::unavailable, shaken.error().message());
  FL_CO_CHECK(shaken);
  const auto connection = ++connection_;
  group_.spawn(read_all(link, connection));
  TimePoint renewal_at = Clock::now();
  while (!stopping_) {
    if (Clock::now() >= renewal_at) {
      FL_CO_CHECK(co_await check_renewal());
      renewal_at = Clock::now() + renewal_check;
    }
    FL_CO_CHECK(co_await advance());
    const bool can_send = sending_ && sending_->size;
    if (can_send && events_.empty()) {
      FL_CO_CHECK(co_await send_some());
      continue;
    }
    TimePoint wake_at = renewal_at;
    if (sending_ && !sending_->is_announced) wake_at = std::min(wake_at, sending_->begin_at);
    if (retry_at_ > Clock::now()) wake_at = std::min(wake_at, retry_at_);
    auto event = co_await events_.pop(wake_at);
    if (!event) continue;
    if (auto* done = std::get_if<JobDone>(&*event)) {
      FL_CO_CHECK(co_await finish_job(std::move(*done)));
      continue;
    }
    auto& arrival = std::get<Arrival>(*event);
    if (arrival.connection != connection) continue;  // Left over from an earlier connection.
    if (!arrival.message) co_return arrival.message.error();
    if (arrival.message->header.has_bye()) {
      const auto& bye = arrival.message->header.bye();
      switch (bye.cause()) {
        case wire::Bye::FINISHED: co_await leave_run(); co_return Outcome::finished;
        case wire::Bye::REFUSED:
          co_return Error(Errc::unauthenticated,
                          "the server rejected this client: " + shown_reason(bye.reason()));
        default: co_return Error(Errc::unavailable, shown_reason(bye.reason()));
      }
    }
    FL_CO_CHECK(co_await handle(std::move(*arrival.message)));
  }
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  [[maybe_unused]] auto sent = co_await send(std::move(header));
  co_return Outcome::stopped;
}

Awaitable<Result<void>> Agent::send(wire::Header header) {
  Message message(std::move(header));
  co_return co_await link_->send(std::move(message));
}

/// Stops the job and waits until it has ended. Returns false if the agent was stopped meanwhile.
Awaitable<bool> Agent::end_job() {
  job_stop_.request_stop();
  while (has_job_) {
    auto event = co_await events_.pop();
    if (!event) co_return false;
    if (std::holds_alternative<JobDone>(*event)) has_job_ = false;
  }
  co_return true;
}

/// Ends this client's part in a finished run, then answers the server's Bye. The server waits for
/// that answer, so that a client that is killed before it can still reconnect and hear of the end.
Awaitable<void> Agent::leave_run() {
  if (co_await end_job()) {
    state_->drop_spare();
    if (options_.stay) co_await export_own_tensors();  // Otherwise run() does it at its end.
  }
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  [[maybe_unused]] auto sent = co_await send(std::move(header));
}

/// Writes this client's own tensors to a file. No job may be running. After a failure the values
/// are still in the state.
Awaitable<void> Agent::export_own_tensors() {
  auto work = [this] { return state_->export_own_tensors(); };
  const auto path = co_await worker_.run(std::move(work));
  if (!path) log_warn("{}", path.error().message());
  if (path && !path->empty()) log_info("wrote this client's own tensors to {}", path->string());
}

Awaitable<Result<void>> Agent::handle(Message message) {
  auto& header = message.header;
  switch (header.kind_case()) {
    case wire::Header::kOffer: {
      auto& offer = *header.mutable_offer();
      FL_CO_CHECK(check_length("optimizer", offer.optimizer(), limits::spec_bytes_max));
      FL_CO_CHECK(check_length("codec", offer.codec(), limits::spec_bytes_max));
      // Only the first offer of a session has this digest, and a newer offer may replace that one.
      if (!offer.initial_digest().empty()) run_initial_ = offer.initial_digest();
      offer.set_initial_digest(run_initial_);
      const bool is_made = state_ && !has_job_ && state_->pending() &&
                           state_->pending()->begin.task() == offer.task();
      const bool is_being_made = has_job_ && job_task_ == offer.task();
      if (is_made || is_being_made) co_return success();
      if (has_job_ && job_task_ != 0) job_stop_.request_stop();  // The server has moved on.
      offer_ = offer;
      log_info("round {}: asked to train from version {}", offer.round(), offer.version());
      co_return success();
    }
    case wire::Header::kEvaluate:
      // After a reconnection the server asks again for versions that may already be queued here.
      if (evaluate_.empty() || evaluate_.back().version() < header.evaluate().version())
        evaluate_.push_back(header.evaluate());
      if (evaluate_.size() > limits::evaluations_asked_max) evaluate_.pop_front();
      co_return success();
    case wire::Header::kModel: co_return co_await begin_download(header.model());
    case wire::Header::kChunk: co_return co_await take_chunk(message);
    case wire::Header::kResume: co_return co_await resume(header.resume());
    case wire::Header::kVerdict: co_return co_await take_verdict(header.verdict());
    case wire::Header::kFailed:
      // The server no longer has this version. It will send a newer offer or evaluation.
      is_fetching_ = false;
      download_.reset();
      if (!evaluate_.empty() && evaluate_.front().version() == header.failed().version())
        evaluate_.pop_front();
      if (offer_ && offer_->version() == header.failed().version()) offer_.reset();
      co_return success();
    case wire::Header::kRenewed:
      if (!std::exchange(wants_renewal_, false)) {
        log_warn("ignored a certificate that this client did not ask for");
        co_return success();
      }
      co_return take_renewal(header.renewed());
    default:
      co_return Error(Errc::protocol, fmt::format("a server may not send {}", kind_name(header)));
  }
}

Awaitable<Result<void>> Agent::check_renewal() {
  if (keeper_ == nullptr) co_return success();
  const auto request = keeper_->renewal_request(authorities_);
  if (will_pass(request)) {
    log_warn("can't renew this client's certificate now: {}", request.error().message());
    co_return success();
  }
  FL_CO_CHECK(request);
  if (!*request) co_return success();
  wire::Header header;
  header.mutable_renew()->set_csr_pem(**request);
  wants_renewal_ = true;
  co_return co_await send(std::move(header));
}

/// Without room on the disk the next check asks again; the old certificate is valid until then.
Result<void> Agent::take_renewal(const wire::Renewed& renewed) {
  const auto taken = keeper_->take_renewal(renewed);
  if (taken) log_info("renewed this client's certificate");
  if (!will_pass(taken)) return taken;
  log_warn("can't keep this client's renewed certificate now: {}", taken.error().message());
  return {};
}

/// Begins the next thing that can begin now. There is one job, one download and one upload at a
/// time.
Awaitable<Result<void>> Agent::advance() {
  if (has_job_ || is_fetching_) co_return success();
  if (!sending_ && Clock::now() >= retry_at_) FL_CO_CHECK(co_await prepare_pending());
  if (sending_ && !sending_->is_announced && Clock::now() >= sending_->begin_at)
    FL_CO_CHECK(co_await announce());
  // Don't fetch during an upload: if both ends send and wait for room, neither reads.
  if (sending_ || Clock::now() < retry_at_) co_return success();
  if (offer_) {
    if (auto model = replica(offer_->version(), offer_->version_digest())) {
      job_stop_ = std::stop_source();
      auto work = [this, offer = *offer_, model, stop = job_stop_.get_token()] {
        return train(offer, *model, stop);
      };
      start_job(offer_->task(), std::move(work));
    } else {
      FL_CO_CHECK(co_await fetch(offer_->version()));
    }
  } else if (!evaluate_.empty()) {
    const wire::Evaluate wanted = evaluate_.front();
    if (auto model = replica(wanted.version(), wanted.version_digest())) {
      job_stop_ = std::stop_source();
      auto work = [this, version = wanted.version(), model, stop = job_stop_.get_token()] {
        return evaluate(version, *model, stop);
      };
      evaluate_.pop_front();
      start_job(0, std::move(work));
    } else {
      FL_CO_CHECK(co_await fetch(wanted.version()));
    }
  }
  co_return success();
}

/// The values of a version; null if it must be fetched.
ModelCache::Model Agent::replica(std::uint32_t version, const std::string& digest) const {
  const bool is_it =
      replica_.is_there && replica_.version == version && replica_.digest.raw() == digest;
  return is_it ? models_.find(replica_.digest) : nullptr;
}

/// Something that took from `begin` until now. On the strand or on the worker.
void Agent::trace(const char* what, std::uint32_t round, TimePoint begin, std::uint64_t bytes) {
  if (options_.trace == nullptr) return;
  const bool is_transfer = bytes > 0;
  const double passed = seconds(Clock::now() - begin);
  const TraceSpan span = trace_span(fmt::format("{} {}", what, round),
                                    is_transfer ? "transfers" : "work", passed, passed, bytes);
  options_.trace->write(0, {&span, 1});
}

void Agent::start_job(std::int64_t task, std::function<JobDone()> work) {
  has_job_ = true;
  job_task_ = task;
  group_.spawn(run_job(task, std::move(work)));
}

Awaitable<void> Agent::run_job(std::int64_t task, std::function<JobDone()> work) {
  // An exception becomes an internal error, which ends the client.
  auto guarded = [work = std::move(work)] {
    try {
      return work();
    } catch (const std::exception& error) {
      JobDone failed;
      failed.result = Error(Errc::internal, fmt::format("unexpected error: {}", error.what()));
      return failed;
    }
  };
  JobDone done = co_await worker_.run(std::move(guarded));
  done.task = task;
  Event event(std::move(done));
  if (!co_await events_.push_waiting(std::move(event))) has_job_ = false;
}

void Agent::forget_offer(std::int64_t task) {
  if (offer_ && offer_->task() == task) offer_.reset();
}

Awaitable<Result<void>> Agent::finish_job(JobDone done) {
  has_job_ = false;
  job_task_ = 0;
  if (!done.result && done.result.error().code() == Errc::cancelled) co_return success();
  if (!done.result) {
    const auto& error = done.result.error();
    if (error.code() == Errc::no_space) {
      log_warn("{}; trying again", error.message());
      retry_at_ = Clock::now() + limits::full_disk_pause;
      co_return success();
    }
    wire::Header header;
    header.mutable_failed()->set_task(done.task);
    if (done.evaluation) header.mutable_failed()->set_version(done.evaluation->version());
    header.mutable_failed()->set_reason(shown_reason(error.message()));
    const auto sent = co_await send(std::move(header));
    if (error.code() != Errc::invalid_input) co_return error;
    // This task can't be done, but the next one may work.
    log_warn("{}", error.message());
    forget_offer(done.task);
    co_return sent;
  }
  forget_offer(done.task);
  if (done.evaluation) {
    log_info("version {}: {}, {} examples", done.evaluation->version(),
             metrics_text(read_metrics(done.evaluation->metrics()), done.evaluation->loss()),
             done.evaluation->examples());
    wire::Header header;
    *header.mutable_evaluation() = *done.evaluation;
    co_return co_await send(std::move(header));
  }
  co_return success();
}

}  // namespace fl
