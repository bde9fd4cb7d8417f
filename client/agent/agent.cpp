// The loop: connections, events, and what to begin next. Uploads and downloads are in
// transfer.cpp, what the worker does in jobs.cpp.
#include "client/agent/agent.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/version.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t events_max = 2;  // Each may hold a chunk.
constexpr auto renewal_check = std::chrono::hours(1);

/// What ends the agent, where other errors end only the connection.
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

void Agent::stop() {
  stopping_ = true;
  job_stop_.request_stop();
  stopped_.notify();
  events_.close();
}

Awaitable<Result<Agent::Outcome>> Agent::run() {
  Result<Outcome> outcome = Outcome::stopped;
  int failures = 0;
  std::uint64_t over_at = 0;  // The connection that brought the end of a run.
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
      if (stopping_) break;
      // One that ended at once is no success, though it got in: another may have taken its place.
      if (Clock::now() - began >= limits::connection_settled) failures = 0;
    } else {
      outcome = link.error();
    }
    if (outcome && *outcome == Outcome::finished &&
        std::exchange(over_at, connection_) != connection_)
      log_info("the run is over{}", options_.stay ? "; waiting for another" : "");
    if (outcome && *outcome == Outcome::finished && !options_.stay) break;
    if (!outcome && is_final(outcome.error())) break;
    if (!outcome) {
      const bool worth_a_line = failures == 0 || failures % 10 == 0;
      if (worth_a_line) log_warn("{}; trying again", outcome.error().message());
    }
    co_await back_off(failures);
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

Awaitable<void> Agent::back_off(int attempt) {
  const double part = static_cast<double>(jitter_()) / static_cast<double>(std::minstd_rand::max());
  const TimePoint until = Clock::now() + backoff_pause(attempt, part);
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
  const auto shaken = co_await shake_hands();
  // Over while we were away. Who has not been in the run waits for the next one.
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
    if (arrival.connection != connection) continue;  // The tail of an earlier connection.
    if (!arrival.message) co_return arrival.message.error();
    if (arrival.message->header.has_bye()) {
      const auto& bye = arrival.message->header.bye();
      switch (bye.cause()) {
        case wire::Bye::FINISHED: co_await leave_run(); co_return Outcome::finished;
        case wire::Bye::REFUSED:
          co_return Error(Errc::unauthenticated, "the server refuses this client: " + bye.reason());
        default: co_return Error(Errc::unavailable, bye.reason());
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

/// Hello, Welcome, (load model and data), Ready.
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
    if (bye.cause() == wire::Bye::FINISHED) co_return Error(Errc::cancelled, bye.reason());
    if (bye.cause() != wire::Bye::REFUSED) co_return Error(Errc::unavailable, bye.reason());
    co_return Error(Errc::unauthenticated, "the server refuses this client: " + bye.reason());
  }
  if (!answer.header.has_welcome()) {
    co_return Error(Errc::protocol,
                    fmt::format("the server answered Hello with {}", kind_name(answer.header)));
  }
  auto ready = co_await prepare(answer.header.welcome());
  wire::Header next;
  // The history has its reason then.
  const bool is_told = !ready && !run_key_.empty() && told_run_ == run_key_;
  told_run_ = ready ? "" : run_key_;
  if (is_told) co_return ready.error();
  if (!ready) {
    next.mutable_bye()->set_cause(wire::Bye::LEAVING);
    next.mutable_bye()->set_reason(ready.error().message());
    [[maybe_unused]] auto sent = co_await send(std::move(next));
    co_return ready.error();
  }
  next.mutable_ready()->set_train_examples(options_.evaluator ? 0 : trainer_->train_examples());
  next.mutable_ready()->set_holdout_examples(trainer_->holdout_examples());
  co_return co_await send(std::move(next));
}

/// False: the agent was stopped.
Awaitable<bool> Agent::end_job() {
  job_stop_.request_stop();
  while (has_job_) {
    auto event = co_await events_.pop();
    if (!event) co_return false;
    if (std::holds_alternative<JobDone>(*event)) has_job_ = false;
  }
  co_return true;
}

/// The server goes when all have answered: whoever is killed before that must find it again.
Awaitable<void> Agent::leave_run() {
  if (co_await end_job()) {
    state_->drop_spare();
    if (options_.stay) co_await export_own_tensors();  // Else run() does, which ends.
  }
  wire::Header header;
  header.mutable_bye()->set_cause(wire::Bye::LEAVING);
  [[maybe_unused]] auto sent = co_await send(std::move(header));
}

/// No job may be under way. What can't be written now is in the state still.
Awaitable<void> Agent::export_own_tensors() {
  auto work = [this] { return state_->export_own_tensors(); };
  const auto path = co_await worker_.run(std::move(work));
  if (!path) log_warn("{}", path.error().message());
  if (path && !path->empty()) log_info("what this client keeps to itself is in {}", path->string());
}

Awaitable<Result<void>> Agent::prepare(const wire::Welcome& welcome) {
  // A job of an earlier connection reads trainer, layout and state: if the run is another one, let
  // it end first.
  const bool is_other_method = !strategy_ || strategy_->spec() != welcome.strategy();
  const bool is_other_run =
      welcome.run_key() != run_key_ || welcome.model() != model_ || is_other_method;
  if (is_other_run) {
    if (!co_await end_job()) co_return Error(Errc::cancelled, "stopped");
    offer_.reset();
    evaluate_.clear();
    download_.reset();
    replica_ = Replica();
    initial_digest_.reset();
    run_initial_.clear();
    auto enter = [this, key = welcome.run_key()]() -> Result<void> {
      FL_TRY(const bool is_another, state_->enter_run(key));
      if (is_another) partial_->drop();
      return {};
    };
    FL_CO_CHECK(co_await worker_.run(std::move(enter)));
    run_key_ = welcome.run_key();
  }
  wants_initial_ = false;
  const bool is_other_model = welcome.model() != model_;
  if (is_other_model) {
    strategy_.reset();  // Its layout is of the old model.
    auto make = [this, model = welcome.model()] {
      coder_.reset();
      return factory_(model);
    };
    auto made = co_await worker_.run(std::move(make));
    if (!made) {
      model_.clear();
      // Who has been in a run, and stays, waits for one that is for it.
      const bool is_for_others = options_.stay && connection_ > 0;
      if (!is_for_others || made.error().code() != Errc::invalid_input) co_return made.error();
      const Error others = Error(Errc::unavailable,
                                 fmt::format("this run is for others: {}", made.error().message()));
      // That it tries again does not mean that there is nothing to say.
      if (told_run_ != run_key_) log_warn("{}; waiting for another", others.message());
      co_return others;
    }
    trainer_ = std::move(*made);
    model_ = welcome.model();
    log_info("{}: {} parameters, {} training examples, {} held out", model_,
             trainer_->layout().elements(), trainer_->train_examples(),
             trainer_->holdout_examples());
  }
  seed_ = welcome.seed();
  if (is_other_model || is_other_method) {
    auto strategy = parse_strategy(welcome.strategy());
    if (!strategy) co_return strategy.error().at("this client can't run what the server asks for");
    FL_CO_TRY(layout_, run_layout(trainer_->layout(), **strategy));
    strategy_ = std::move(*strategy);
  }
  if (is_other_run) state_->set_own_tensors(own_tensors());
  if (strategy_->counts_steps() && trainer_->takes_steps_together()) {
    co_return Error(Errc::invalid_input,
                    fmt::format("strategy '{}' must know how far the local steps go one after the "
                                "other, and --hogwild takes several together: leave it out",
                                strategy_->spec()));
  }
  if (layout_.all.digest().raw() != welcome.layout_digest()) {
    co_return Error(Errc::invalid_input,
                    fmt::format("the server's model '{}' has other tensors than this client's: "
                                "install the same release on both",
                                model_));
  }
  if (!replica_.is_there && !has_job_) {
    auto make = [this] { make_version_0(); };
    co_await worker_.run(std::move(make));
  }
  co_return success();
}

Awaitable<Result<void>> Agent::handle(Message message) {
  auto& header = message.header;
  switch (header.kind_case()) {
    case wire::Header::kOffer: {
      auto& offer = *header.mutable_offer();
      // Said once a session, and perhaps in an offer that another has overtaken.
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
      // Of those that a server asks for again after a new connection only the new ones.
      if (evaluate_.empty() || evaluate_.back().version() < header.evaluate().version())
        evaluate_.push_back(header.evaluate());
      if (evaluate_.size() > limits::evaluations_asked_max) evaluate_.pop_front();
      co_return success();
    case wire::Header::kInitialise: wants_initial_ = true; co_return success();
    case wire::Header::kModel: co_return co_await begin_download(header.model());
    case wire::Header::kChunk: co_return co_await take_chunk(message);
    case wire::Header::kResume: co_return co_await resume(header.resume());
    case wire::Header::kVerdict: co_return co_await take_verdict(header.verdict());
    case wire::Header::kFailed:
      // The version that we asked for is gone: a newer offer or evaluation will come.
      is_fetching_ = false;
      download_.reset();
      if (!evaluate_.empty() && evaluate_.front().version() == header.failed().version())
        evaluate_.pop_front();
      if (offer_ && offer_->version() == header.failed().version()) offer_.reset();
      co_return success();
    case wire::Header::kRenewed:
      if (keeper_ != nullptr) FL_CO_CHECK(keeper_->take_renewal(header.renewed()));
      log_info("the certificate was renewed");
      co_return success();
    default:
      co_return Error(Errc::protocol, fmt::format("a server may not send {}", kind_name(header)));
  }
}

Awaitable<Result<void>> Agent::check_renewal() {
  if (keeper_ == nullptr) co_return success();
  FL_CO_TRY(const auto request, keeper_->renewal_request());
  if (!request) co_return success();
  wire::Header header;
  header.mutable_renew()->set_csr_pem(*request);
  co_return co_await send(std::move(header));
}

/// One job at a time, one download at a time, one upload at a time: whatever is next and can begin.
Awaitable<Result<void>> Agent::advance() {
  if (has_job_ || is_fetching_) co_return success();
  if (!sending_) FL_CO_CHECK(co_await prepare_pending());
  if (sending_ && !sending_->is_announced && Clock::now() >= sending_->begin_at)
    FL_CO_CHECK(co_await announce());
  // Nothing is fetched beside an upload: two ends that both send and wait for room read nothing.
  if (sending_ || Clock::now() < retry_at_) co_return success();
  if (wants_initial_) {
    wants_initial_ = false;
    auto work = [this, seed = seed_] { return make_initial(seed); };
    start_job(0, std::move(work));
  } else if (offer_) {
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

/// Null: it must be fetched.
ModelCache::Model Agent::replica(std::uint32_t version, const std::string& digest) const {
  const bool is_it =
      replica_.is_there && replica_.version == version && replica_.digest.raw() == digest;
  return is_it ? models_.find(replica_.digest) : nullptr;
}

void Agent::start_job(std::int64_t task, std::function<JobDone()> work) {
  has_job_ = true;
  job_task_ = task;
  group_.spawn(run_job(task, std::move(work)));
}

Awaitable<void> Agent::run_job(std::int64_t task, std::function<JobDone()> work) {
  // Whatever it throws ends this job with an error, and the client, which says so.
  auto guarded = [work = std::move(work)] {
    try {
      return work();
    } catch (const std::exception& error) {
      JobDone failed;
      failed.result = Error(Errc::internal, fmt::format("the worker: {}", error.what()));
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
      wants_initial_ = wants_initial_ || done.is_initial;
      retry_at_ = Clock::now() + limits::full_disk_pause;
      co_return success();
    }
    if (error.code() == Errc::invalid_input) {
      // This task can't be done; the next may be.
      log_warn("{}", error.message());
      forget_offer(done.task);
      wire::Header header;
      header.mutable_failed()->set_task(done.task);
      if (done.evaluation) header.mutable_failed()->set_version(done.evaluation->version());
      header.mutable_failed()->set_reason(error.message());
      co_return co_await send(std::move(header));
    }
    co_return error;
  }
  forget_offer(done.task);
  if (done.evaluation) {
    log_info("version {}: accuracy {:.2f}%, loss {:.4f}, {} examples", done.evaluation->version(),
             100 * done.evaluation->accuracy(), done.evaluation->loss(),
             done.evaluation->examples());
    wire::Header header;
    *header.mutable_evaluation() = *done.evaluation;
    co_return co_await send(std::move(header));
  }
  co_return success();
}

}  // namespace fl
