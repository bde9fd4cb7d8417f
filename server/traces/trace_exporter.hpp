// SPDX-License-Identifier: Apache-2.0
// Sends the traces of recorded rounds to an OpenTelemetry collector. It runs beside the engine, on
// a strand and a thread of its own, and nothing waits for it: what the collector does not take in
// time waits in a bounded queue of rounds' numbers (RecordedRounds), and is then dropped and
// counted. Of spans there is one request's in memory.
//
// open() and start() belong to the start of the process; counts() may be called from any thread,
// finish() from any strand.
#pragma once

#include "server/traces/otlp_answer.hpp"
#include "server/traces/otlp_settings.hpp"
#include "server/traces/trace_counts.hpp"
#include "server/traces/trace_reader.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/async/offload.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

namespace fl::server {

class TraceExporter {
 public:
  /// `history` exists. `by_client`: traces name the clients. Errors: those of HttpClient::make()
  /// and of opening the history.
  static Result<std::unique_ptr<TraceExporter>> open(net::any_io_executor strand,
                                                     OtlpSettings settings,
                                                     const std::filesystem::path& history,
                                                     bool by_client);

  /// The queue that the engine fills.
  [[nodiscard]] const std::shared_ptr<RecordedRounds>& rounds() const { return rounds_; }
  /// Begins to send. The exporter must live until its executor runs no more.
  void start();
  /// Sends what waits, for limits::otlp_flush_max at the longest. Nothing is sent afterwards.
  Awaitable<void> finish();
  [[nodiscard]] TraceCounts counts() const;

 private:
  /// The content of one request.
  struct Request {
    std::string body;  // "": there is nothing to send.
    std::size_t spans = 0;
    TraceBatch batch;  // The batch without its spans.
  };

  TraceExporter(net::any_io_executor strand, OtlpSettings settings,
                std::unique_ptr<HttpClient> client, std::unique_ptr<TraceReader> reader);
  Awaitable<void> run();
  Awaitable<void> flush();
  Awaitable<void> deliver(Request request);
  Awaitable<OtlpVerdict> send(std::string body);
  Awaitable<bool> may_repeat(const OtlpVerdict& verdict, int attempt, TimePoint give_up_at);
  [[nodiscard]] Request make_request();
  void note(const OtlpVerdict& verdict, std::size_t spans);
  void drop(const std::vector<RecordedRound>& rounds);
  void tell_of_drops();
  [[nodiscard]] bool is_ending() const { return end_at_ != never; }

  const net::any_io_executor strand_;
  const OtlpSettings settings_;
  const std::unique_ptr<HttpClient> client_;
  const std::unique_ptr<TraceReader> reader_;  // Used on the thread.
  const std::shared_ptr<RecordedRounds> rounds_ = std::make_shared<RecordedRounds>();
  Signal changed_;
  TimePoint end_at_ = never;  // Set when the process ends.
  bool has_ended_ = false;
  /// The request that was being repeated when the process began to end had its last try.
  bool had_last_try_ = false;
  bool is_cut_off_ = false;  // The process ends, and the collector takes no requests.
  bool is_failing_ = false;  // The log has said that the collector fails.
  bool has_told_of_drops_ = false;
  std::size_t in_hand_ = 0;  // Rounds of the request under way.
  RecordedRound last_dropped_;
  std::minstd_rand random_;  // Spreads the pauses.
  std::atomic<std::uint64_t> spans_sent_ = 0;
  std::atomic<std::uint64_t> spans_rejected_ = 0;
  /// Dropped rounds, without those that the queue dropped.
  std::atomic<std::uint64_t> rounds_dropped_ = 0;
  Offload thread_{1};
};

}  // namespace fl::server
