// SPDX-License-Identifier: Apache-2.0
#include "server/net/session.hpp"

#include "server/net/session_errors.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/wire/features.hpp"
#include "shared/wire/metric_messages.hpp"
#include "shared/wire/summary_messages.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

/// A flag beside the signal, because a signal forgets what is notified before the wait.
struct Session::Event {
  explicit Event(net::any_io_executor executor) : signal(std::move(executor)) {}
  void happen() {
    has_happened = true;
    signal.notify();
  }
  Signal signal;
  bool has_happened = false;
};

namespace {

/// Ignores an exception of a coroutine that only watches a session (the program ends): the session
/// ends as well, and reports it.
void left_to_the_session(const std::exception_ptr&) {}

/// Closes the link unless the event happens in time.
template <class Event>
Awaitable<void> watch(std::shared_ptr<Link> link, Duration limit, std::shared_ptr<Event> event) {
  const TimePoint deadline = Clock::now() + limit;
  while (!event->has_happened && Clock::now() < deadline) co_await event->signal.wait(deadline);
  if (!event->has_happened) link->close();
}

// On the host's strand: co_await on(host->executor(), …).

Awaitable<Result<wire::Welcome>> find_welcome(std::shared_ptr<SessionHost> host, std::string name,
                                              wire::Hello hello) {
  co_return host->welcome(name, hello);
}

Awaitable<Error> find_differences(std::shared_ptr<SessionHost> host, wire::Bye bye) {
  co_return host->other_tensors(bye);
}

Awaitable<void> note_refusal(std::shared_ptr<SessionHost> host, std::string name,
                             std::string remote, Error error) {
  host->note_refusal(name, remote, error);
  co_return;
}

}  // namespace

Session::Session(std::shared_ptr<Link> link, std::string name, std::shared_ptr<SessionHost> host,
                 std::string serial, Renewer renewer, std::string authorities)
    : link_(std::move(link)),
      host_(std::move(host)),
      renewer_(std::move(renewer)),
      authorities_(std::move(authorities)),
      posted_(link_->executor(), limits::outbox_messages_max),
      ended_(link_->executor()) {
  facts_.name = std::move(name);
  facts_.serial = std::move(serial);
}

void Session::post(wire::Header header) {
  net::post(link_->executor(), [self = shared_from_this(), header = std::move(header)]() mutable {
    if (!self->posted_.push(std::move(header)) && !self->posted_.closed()) self->link_->close();
  });
}

void Session::dismiss(wire::Bye::Cause cause, const std::string& reason) {
  wire::Header header;
  header.mutable_bye()->set_cause(cause);
  header.mutable_bye()->set_reason(printable(reason, limits::reason_bytes_max));
  post(std::move(header));
}

Awaitable<void> Session::run() {
  auto self = shared_from_this();
  auto ready = co_await shake_hands();
  if (ready) ready = co_await on(host_->executor(), host_->join(self));
  if (!ready) {
    // A client with another release, model or role is refused, but not blamed.
    is_at_fault_ = is_fault(ready.error()) && ready.error().code() != Errc::invalid_input;
    if (const auto level = level_of(ready.error()); level != LogLevel::warn) {
      log_at(level, "{} ({}): {}", facts_.name, link_->remote(), ready.error().message());
    } else {
      co_await on(host_->executor(),
                  note_refusal(host_, facts_.name, link_->remote(), ready.error()));
    }
    co_await say_bye(cause_of(ready.error()), ready.error().message());
    co_return;
  }
  net::co_spawn(link_->executor(), send_posted(self), rethrow);
  auto served = co_await serve();
  end_upload();
  has_ended_ = true;
  ended_.notify();
  is_at_fault_ = !served && is_fault(served.error());
  // One that broke the protocol is not waited for: another is asked in its place.
  const bool for_good = served.has_value() || is_at_fault_ || co_await await_last_bye();
  std::string reason = is_at_fault_ ? served.error().message() : "the client left";
  if (served && !served->empty()) reason += ": " + *served;
  net::post(host_->executor(),
            [self, for_good, reason] { self->host_->leave(self, for_good, reason); });
  std::string trouble;
  // A failure that also ends the client is told once.
  if (served && !served->empty() && *served != told_failure_)
    trouble = fmt::format("{} ended with an error: {}", facts_.name, *served);
  const bool is_ended_here = !served && served.error().code() != Errc::unavailable;
  if (is_ended_here)
    trouble = fmt::format("{} ({}): the session ended: {}", facts_.name, link_->remote(),
                          served.error().message());
  if (!trouble.empty())
    net::post(host_->executor(), [self, trouble] {
      self->host_->report_of(self->facts_.name, EventLevel::warning, trouble);
    });
  if (is_ended_here) co_await say_bye(cause_of(served.error()), served.error().message());
  posted_.close();
  link_->close();
}

Awaitable<Result<Message>> Session::receive_within(Duration limit) {
  auto came = std::make_shared<Event>(link_->executor());
  net::co_spawn(link_->executor(), watch(link_, limit, came), left_to_the_session);
  auto message = co_await link_->receive();
  came->happen();
  co_return message;
}

/// Reads until the client's Bye comes, which may wait behind a model that the client was sent.
/// Returns true when the client has left for good.
Awaitable<bool> Session::await_last_bye() {
  while (is_over_) {
    const auto message = co_await link_->receive();
    if (!message) break;
    if (message->header.has_bye()) co_return true;
  }
  co_return false;
}

/// Hello, Welcome, Ready. A client that waits for a run may renew its certificate before.
Awaitable<Result<void>> Session::shake_hands() {
  FL_CO_TRY(Message first, co_await receive_within(limits::handshake_max));
  if (first.header.has_renew()) {
    FL_CO_CHECK(co_await renew(std::move(first)));
    FL_CO_TRY(first, co_await receive_within(limits::handshake_max));
  }
  if (!first.header.has_hello()) {
    co_return Error(Errc::protocol,
                    fmt::format("the first message is {}, not Hello", kind_name(first.header)));
  }
  const wire::Hello& hello = first.header.hello();
  if (hello.protocol() != protocol_version) {
    co_return Error(
        Errc::invalid_input,
        fmt::format(
            "the client speaks protocol {}, this server {}: install the same release on both",
            hello.protocol(), protocol_version));
  }
  FL_CO_TRY(facts_.features, Features::read(hello));
  wire::Header header;
  FL_CO_TRY(*header.mutable_welcome(),
            co_await on(host_->executor(), find_welcome(host_, facts_.name, hello)));
  header.mutable_welcome()->set_authorities(authorities_);
  Features ours = Features::of(End::server);
  if (!renewer_) ours = ours.without(Feature::renewal);
  *header.mutable_welcome()->mutable_features() = ours.to_wire();
  const bool has_model = !header.welcome().version_digest().empty();
  FL_CO_CHECK(co_await send(std::move(header)));
  // Ready has summaries where they make the model; a Bye names the tensors that differ.
  link_->expect_messages_of(limits::ready_bytes_max);
  FL_CO_TRY(const Message second, co_await receive_within(limits::ready_max));
  if (second.header.bye().tensors_size() > 0)
    co_return co_await on(host_->executor(), find_differences(host_, second.header.bye()));
  if (second.header.has_bye()) {
    // The client can't do what the run asks for, and says why: this goes into the history.
    const std::string why = printable(second.header.bye().reason(), limits::reason_bytes_max);
    net::post(host_->executor(),
              [host = host_, name = facts_.name, why] { host->note_decline(name, why); });
    co_return Error(Errc::unavailable, "the client leaves");
  }
  if (!second.header.has_ready()) {
    co_return Error(Errc::protocol,
                    fmt::format("the second message is {}, not Ready", kind_name(second.header)));
  }
  link_->expect_messages_of(limits::request_bytes_max);
  static_cast<HelloFacts&>(facts_) = read_facts(hello);
  facts_.uptime = duration_of(hello.uptime_s());
  facts_.certificate_ends_at = link_->certificate_ends_at();
  facts_.train_examples = second.header.ready().train_examples();
  facts_.holdout_examples = second.header.ready().holdout_examples();
  facts_.metrics = read_metric_kinds(second.header.ready().metrics());
  if (!has_model && !facts_.evaluator) {
    FL_CO_TRY(facts_.summaries, read_summaries(second.header.ready()));
  }
  co_return success();
}

// The messages of a client that is ready -------------------------------------------------------

/// A kind of message that a client may send, and its cost. Hello and Ready belong to the handshake,
/// and Bye ends the session. Every other message breaks the protocol.
struct Session::MessageRow {
  wire::Header::KindCase kind;
  MemberQuota::Cost cost;
  Awaitable<Result<void>> (Session::*handle)(Message message);

  [[nodiscard]] static const MessageRow* find(wire::Header::KindCase kind) {
    using Cost = MemberQuota::Cost;
    static constexpr MessageRow rows[] = {
        {wire::Header::kChunk, Cost::granted, &Session::take_chunk},
        {wire::Header::kFetch, Cost::download, &Session::send_model},
        {wire::Header::kBegin, Cost::message, &Session::begin_upload},
        {wire::Header::kRenew, Cost::renewal, &Session::renew},
        {wire::Header::kEvaluation, Cost::message, &Session::take_evaluation},
        {wire::Header::kFailed, Cost::message, &Session::take_failure},
        {wire::Header::kSecureKeys, Cost::message, &Session::take_secure},
        {wire::Header::kSecureShares, Cost::message, &Session::take_secure},
        {wire::Header::kSecureConsent, Cost::message, &Session::take_secure},
        {wire::Header::kSecureReveal, Cost::message, &Session::take_secure},
    };
    const auto* const found = std::ranges::find(rows, kind, &MessageRow::kind);
    return found == std::end(rows) ? nullptr : found;
  }
};

Awaitable<Result<std::string>> Session::serve() {
  for (;;) {
    auto message = co_await link_->receive();
    if (!message) co_return message.error();
    if (message->header.has_bye()) {
      co_return printable(message->header.bye().reason(), limits::reason_bytes_max);
    }
    const auto& header = message->header;
    const MessageRow* const row = MessageRow::find(header.kind_case());
    if (row == nullptr)
      co_return Error(Errc::protocol, fmt::format("a client may not send {}", kind_name(header)));
    FL_CO_CHECK(quota_.charge(header, row->cost));
    // Chunks of an upload that was put off may have been on their way until now.
    if (!up_.grant.upload && !header.has_chunk())
      link_->expect_messages_of(limits::request_bytes_max);
    FL_CO_CHECK(co_await (this->*row->handle)(std::move(*message)));
  }
}

// Down -----------------------------------------------------------------------------------------

Awaitable<Result<void>> Session::send_model(Message message) {
  const wire::Fetch& fetch = message.header.fetch();
  auto found = co_await on(host_->executor(), host_->download(shared_from_this(), fetch));
  if (!found) {
    wire::Header header;
    header.mutable_failed()->set_version(fetch.version());
    header.mutable_failed()->set_reason(
        printable(found.error().message(), limits::reason_bytes_max));
    co_return co_await send(std::move(header));
  }
  const auto download = std::move(*found);
  wire::Header header;
  *header.mutable_model() = download.model;
  auto sent = co_await send(std::move(header));
  if (sent)
    sent = co_await send_chunks(*link_, download.model.transfer(), download.source,
                                download.model.offset(), download.chunk_bytes_max);
  end_transfer(TransferWay::down, download.chunk_bytes_max);
  co_return as_own_fault(std::move(sent));
}

// Up -------------------------------------------------------------------------------------------

Awaitable<Result<void>> Session::begin_upload(Message message) {
  wire::UploadBegin& begin = *message.header.mutable_begin();
  if (up_.grant.upload) {
    co_return Error(Errc::protocol,
                    fmt::format("UploadBegin of task {} while the upload of task {} is under way",
                                begin.task(), up_.grant.upload->task()));
  }
  auto grant =
      co_await on(host_->executor(), host_->begin_upload(shared_from_this(), std::move(begin)));
  wire::Header header;
  if (!grant.upload) {
    *header.mutable_verdict() = std::move(grant.verdict);
    co_return co_await send(std::move(header));
  }
  auto& resume = *header.mutable_resume();
  resume.set_task(number_of(grant.upload->task()));
  resume.set_offset(grant.upload->next_offset());
  resume.set_chunk_bytes(static_cast<std::uint32_t>(grant.chunk_bytes_max));
  up_.grant = std::move(grant);
  link_->expect_messages_of(limits::request_bytes_max + up_.grant.chunk_bytes_max);
  up_.done = std::make_shared<Event>(link_->executor());
  net::co_spawn(
      link_->executor(),
      watch_pace(shared_from_this(), up_.done, up_.grant.upload->task(), up_.grant.bytes_per_s_min),
      left_to_the_session);
  link_->expect_bulk(up_.grant.upload->bytes() - up_.grant.upload->next_offset());
  FL_CO_CHECK(co_await send(std::move(header)));
  if (up_.grant.upload->is_complete()) co_return co_await finish_upload();
  co_return success();
}

Awaitable<Result<void>> Session::take_chunk(Message message) {
  if (!up_.grant.upload) {
    // The rest of an upload that got its verdict half-way is still on its way: skip it.
    const std::uint64_t bytes = message.payload.bytes().size();
    const bool is_tail =
        message.header.chunk().transfer() == static_cast<std::uint64_t>(up_.grant.verdict.task());
    if (is_tail && bytes <= up_.tail_bytes) {
      up_.tail_bytes -= bytes;
      co_return success();
    }
    co_return Error(Errc::protocol, fmt::format("a chunk of transfer {} without an upload",
                                                message.header.chunk().transfer()));
  }
  auto& upload = *up_.grant.upload;
  FL_CO_CHECK(check_chunk(message, static_cast<std::uint64_t>(number_of(upload.task())),
                          upload.next_offset(), upload.bytes()));
  auto written = upload.append(message.payload.bytes());
  if (!written) {
    if (written.error().code() != Errc::no_space) co_return written.error();
    wire::Verdict verdict;
    verdict.set_task(number_of(upload.task()));
    verdict.set_outcome(wire::Verdict::LATER);
    verdict.set_reason("the server's disk is full");
    const std::string text =
        fmt::format("{}: upload postponed: {}", facts_.name, written.error().message());
    net::post(host_->executor(), [host = host_, text] { host->report_full_disk(text); });
    wire::Header header;
    *header.mutable_verdict() = verdict;
    up_.tail_bytes = upload.bytes() - upload.next_offset();
    end_upload();
    up_.grant.verdict = std::move(verdict);
    co_return co_await send(std::move(header));
  }
  if (upload.is_complete()) co_return co_await finish_upload();
  co_return success();
}

/// Ends the session when the upload comes too slowly to be worth waiting for.
Awaitable<void> Session::watch_pace([[maybe_unused]] std::shared_ptr<Session> self,
                                    std::shared_ptr<Event> done, TaskId task,
                                    double bytes_per_s_min) {
  // A client that limits its own traffic sends such pieces at once, with pauses between them.
  const auto piece = static_cast<double>(
      std::min<std::uint64_t>(limits::chunk_bytes_min, up_.grant.begin.bytes()));
  const double window_s = std::max(seconds(limits::upload_window), piece / bytes_per_s_min);
  const Duration window = duration_of(window_s);
  for (;;) {
    const std::uint64_t before = link_->bytes_arrived();
    const TimePoint until = Clock::now() + window;
    while (!done->has_happened && Clock::now() < until) co_await done->signal.wait(until);
    if (done->has_happened) co_return;
    const double pace = static_cast<double>(link_->bytes_arrived() - before) / window_s;
    if (pace >= bytes_per_s_min) continue;
    std::string text =
        fmt::format("its upload sends {:.0f} bytes/s; the least is {:.0f}", pace, bytes_per_s_min);
    const bool trickles = pace < bytes_per_s_min * limits::trickle_share;
    net::co_spawn(host_->executor(),
                  host_->end_slow_upload(shared_from_this(), task, trickles, std::move(text)),
                  rethrow);
    link_->close();
    co_return;
  }
}

Awaitable<Result<void>> Session::finish_upload() {
  up_.done->happen();
  auto grant = std::exchange(up_.grant, UploadGrant());
  const std::size_t chunk_bytes_max = grant.chunk_bytes_max;
  wire::Header header;
  *header.mutable_verdict() =
      co_await on(host_->executor(), host_->finish_upload(shared_from_this(), std::move(grant)));
  end_transfer(TransferWay::up, chunk_bytes_max);
  link_->expect_messages_of(limits::request_bytes_max);
  co_return co_await send(std::move(header));
}

/// Gives up the upload under way, if there is one.
void Session::end_upload() {
  if (up_.grant.upload) {
    up_.done->happen();
    end_transfer(TransferWay::up, up_.grant.chunk_bytes_max);
  }
  up_.grant = {};
}

// Control --------------------------------------------------------------------------------------

Awaitable<Result<void>> Session::take_evaluation(Message message) {
  co_await on(host_->executor(),
              host_->record_evaluation(shared_from_this(),
                                       std::move(*message.header.mutable_evaluation())));
  co_return success();
}

Awaitable<Result<void>> Session::take_failure(Message message) {
  told_failure_ = printable(message.header.failed().reason(), limits::reason_bytes_max);
  co_await on(
      host_->executor(),
      host_->record_failure(shared_from_this(), std::move(*message.header.mutable_failed())));
  co_return success();
}

Awaitable<Result<void>> Session::take_secure(Message message) {
  co_return co_await on(host_->executor(),
                        host_->take_secure(shared_from_this(), std::move(message.header)));
}

Awaitable<Result<void>> Session::renew(Message message) {
  if (!renewer_)
    co_return Error(Errc::invalid_input, "this session has no certificate that could be renewed");
  wire::Header header;
  auto renewed = co_await renewer_(message.header.renew().csr_pem());
  if (!renewed) co_return renewed.error();
  *header.mutable_renewed() = std::move(*renewed);
  co_return co_await send(std::move(header));
}

Awaitable<Result<void>> Session::send(wire::Header header) {
  quota_.allow_answers_to(header);
  Message message(std::move(header));
  co_return as_own_fault(co_await link_->send(std::move(message)));
}

Awaitable<void> Session::send_posted([[maybe_unused]] std::shared_ptr<Session> self) {
  while (auto header = co_await posted_.pop()) {
    const bool is_last = header->has_bye();
    is_over_ = is_last && header->bye().cause() == wire::Bye::FINISHED;
    if (is_last) {
      co_await say_last(std::move(*header));
      break;
    }
    auto sent = co_await send(std::move(*header));
    if (!sent) break;
  }
  posted_.close();
  const TimePoint until = Clock::now() + limits::farewell_max;
  while (is_over_ && !has_ended_ && Clock::now() < until) co_await ended_.wait(until);
  link_->close();
}

Awaitable<void> Session::say_bye(wire::Bye::Cause cause, std::string reason) {
  wire::Header header;
  header.mutable_bye()->set_cause(cause);
  header.mutable_bye()->set_reason(printable(reason, limits::reason_bytes_max));
  co_await say_last(std::move(header));
  link_->close();
}

/// Says a last message, but closes the link if the peer stops reading.
Awaitable<void> Session::say_last(wire::Header bye) {
  auto said = std::make_shared<Event>(link_->executor());
  net::co_spawn(link_->executor(), watch(link_, limits::close_max, said), left_to_the_session);
  [[maybe_unused]] auto sent = co_await send(std::move(bye));
  said->happen();
}

void Session::end_transfer(TransferWay way, std::size_t chunk_bytes_max) {
  net::post(host_->executor(), [self = shared_from_this(), way, chunk_bytes_max] {
    self->host_->end_transfer(*self, way, chunk_bytes_max);
  });
}

}  // namespace fl::server
