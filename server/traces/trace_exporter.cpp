// SPDX-License-Identifier: Apache-2.0
#include "server/traces/trace_exporter.hpp"

#include "server/traces/otlp_json.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

Result<std::unique_ptr<TraceExporter>> TraceExporter::open(net::any_io_executor strand,
                                                           OtlpSettings settings,
                                                           const std::filesystem::path& history,
                                                           bool by_client) {
  auto client = HttpClient::make({.url = settings.url,
                                  .headers = settings.headers,
                                  .authority_file = settings.authority_file,
                                  .proxies = ProxyRules("", system_environment()),
                                  .answer_bytes_max = limits::otlp_answer_bytes_max});
  if (!client) return client.error().at("traces (OTEL_EXPORTER_OTLP_CERTIFICATE)");
  FL_TRY(auto reader, TraceReader::open(history, by_client));
  return std::unique_ptr<TraceExporter>(new TraceExporter(std::move(strand), std::move(settings),
                                                          std::move(*client), std::move(reader)));
}

TraceExporter::TraceExporter(net::any_io_executor strand, OtlpSettings settings,
                             std::unique_ptr<HttpClient> client,
                             std::unique_ptr<TraceReader> reader)
    : strand_(std::move(strand)),
      settings_(std::move(settings)),
      client_(std::move(client)),
      reader_(std::move(reader)),
      changed_(strand_),
      random_(std::random_device{}()) {}

void TraceExporter::start() {
  log_info("traces of rounds go to {} (from {})", to_string(settings_.url), settings_.source);
  if (!settings_.advice.empty()) log_warn("traces: {}", settings_.advice);
  // Rounds go on, whatever goes wrong with traces.
  net::co_spawn(strand_, run(), [this](const std::exception_ptr& failure) {
    has_ended_ = true;
    changed_.notify();
    try {
      rethrow(failure);
    } catch (const std::exception& error) {
      log_error("traces: none is sent any more, as the exporter ended by an exception: {}",
                error.what());
    }
  });
}

Awaitable<void> TraceExporter::finish() { co_await on(strand_, flush()); }

TraceCounts TraceExporter::counts() const {
  return {.spans_sent = spans_sent_,
          .spans_rejected = spans_rejected_,
          .rounds_dropped = rounds_dropped_ + rounds_->dropped(),
          .rounds_waiting = rounds_->waiting()};
}

Awaitable<void> TraceExporter::run() {
  while (!is_cut_off_) {
    auto make = [this] { return make_request(); };
    Request request = co_await thread_.run(std::move(make));
    if (request.batch.trouble)
      log_warn("traces: a round can't be read: {}", request.batch.trouble->message());
    drop(request.batch.lost);
    tell_of_drops();
    if (!request.body.empty()) {
      co_await deliver(std::move(request));
    } else if (is_ending() && rounds_->waiting() == 0) {
      break;
    } else if (request.batch.lost.empty()) {
      co_await changed_.wait(Clock::now() + limits::otlp_look);
    }
  }
}

/// Runs on the thread.
TraceExporter::Request TraceExporter::make_request() {
  Request request;
  request.batch = reader_->next(*rounds_);
  request.spans = request.batch.spans.size();
  if (request.spans > 0) request.body = otlp_json(settings_.resource, request.batch.spans);
  request.batch.spans = {};
  return request;
}

/// Returns when the collector has taken the request, or when it is dropped.
Awaitable<void> TraceExporter::deliver(Request request) {
  const TimePoint give_up_at = Clock::now() + limits::otlp_retry_max;
  in_hand_ = request.batch.rounds.size();
  for (int attempt = 0;; ++attempt) {
    std::string body = request.body;
    const OtlpVerdict verdict = co_await send(std::move(body));
    note(verdict, request.spans);
    tell_of_drops();
    if (verdict.kind == OtlpVerdict::Kind::taken) break;
    bool is_over = verdict.kind == OtlpVerdict::Kind::refused;
    if (!is_over) {
      const bool again = co_await may_repeat(verdict, attempt, give_up_at);
      is_over = !again;
      is_cut_off_ = is_over && is_ending();
    }
    if (!is_over) continue;
    drop(request.batch.rounds);
    break;
  }
  in_hand_ = 0;
  tell_of_drops();
}

Awaitable<OtlpVerdict> TraceExporter::send(std::string body) {
  const auto answer =
      co_await client_->post("application/json", std::move(body), settings_.timeout);
  if (answer) co_return judge_answer(*answer, Clock::unix_seconds());
  OtlpVerdict verdict;
  verdict.kind = OtlpVerdict::Kind::later;
  verdict.text = answer.error().message();
  co_return verdict;
}

/// Waits until a request may be sent again. Returns false if it is not sent again, because it was
/// tried for too long or the process ends. In the end, a request that the collector has not taken
/// has one more try.
Awaitable<bool> TraceExporter::may_repeat(const OtlpVerdict& verdict, int attempt,
                                          TimePoint give_up_at) {
  const double jitter = std::uniform_real_distribution<double>()(random_);
  const TimePoint due = Clock::now() + std::max(verdict.pause, backoff_pause(attempt, jitter));
  if (due >= give_up_at) co_return false;
  while (Clock::now() < due) {
    if (is_ending()) break;
    co_await changed_.wait(due);
  }
  if (!is_ending()) co_return true;
  const bool is_early = Clock::now() < due && verdict.pause > Duration::zero();
  co_return !is_early && !std::exchange(had_last_try_, true);
}

/// Counts, and says in the log when the collector begins or stops to fail.
void TraceExporter::note(const OtlpVerdict& verdict, std::size_t spans) {
  const std::string where = to_string(settings_.url);
  if (verdict.kind != OtlpVerdict::Kind::taken) {
    if (std::exchange(is_failing_, true)) return;
    log_warn(
        "traces: {} does not take them: {}; rounds go on, and up to {} of them wait to be sent",
        where, verdict.text, limits::trace_rounds_max);
    return;
  }
  const std::uint64_t rejected = std::min<std::uint64_t>(verdict.spans_rejected, spans);
  const bool is_first = spans_rejected_ == 0;
  spans_sent_ += spans;
  spans_rejected_ += rejected;
  if (rejected > 0 && is_first)
    log_warn("traces: {} has rejected {} of {} spans: {} (said once)", where, rejected, spans,
             verdict.text.empty() ? "no reason given" : verdict.text);
  if (std::exchange(is_failing_, false)) log_info("traces: {} takes them again", where);
}

/// Counts each round once, even if several of its requests are dropped.
void TraceExporter::drop(const std::vector<RecordedRound>& rounds) {
  for (const RecordedRound& round : rounds) {
    if (round.run == last_dropped_.run && round.round == last_dropped_.round) continue;
    last_dropped_ = round;
    ++rounds_dropped_;
  }
}

void TraceExporter::tell_of_drops() {
  if (has_told_of_drops_ || counts().rounds_dropped == 0) return;
  has_told_of_drops_ = true;
  log_warn(
      "the trace of a round is dropped, and others may be (said once: "
      "tributary_trace_rounds_dropped_total of /metrics counts them)");
}

Awaitable<void> TraceExporter::flush() {
  end_at_ = Clock::now() + limits::otlp_flush_max;
  changed_.notify();
  while (!has_ended_ && Clock::now() < end_at_) co_await changed_.wait(end_at_);
  const std::size_t left = rounds_->waiting() + in_hand_;
  if (left > 0)
    log_warn("traces of the last {} rounds were not sent: {} did not take them in time", left,
             to_string(settings_.url));
}

}  // namespace fl::server
