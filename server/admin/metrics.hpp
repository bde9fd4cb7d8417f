// SPDX-License-Identifier: Apache-2.0
// The page /metrics, in Prometheus' text format. Names have base units and, for counters, _total.
// docs/guide/monitoring.md lists them. Counters and histograms begin with this process.
#pragma once

#include "server/history/history_tally.hpp"
#include "server/history/store_thread.hpp"
#include "server/round/status.hpp"
#include "server/traces/trace_counts.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/async/offload.hpp"

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace fl::server {

/// The waits that Metrics measures by itself.
struct MeasuredWaits {
  SecondsHistogram loop_lag_s;    // How late the engine's strand runs what is due.
  SecondsHistogram store_wait_s;  // The time of a call of the store that does nothing.
};

[[nodiscard]] std::string format_metrics(const EngineStatus& status, const HistoryTally& tally,
                                         const MeasuredWaits& waits,
                                         const TraceCounts& traces = {});

class Metrics {
 public:
  /// Returns how many traces were sent and lost. Called from any thread; null if there are no
  /// traces.
  using Traces = std::function<TraceCounts()>;

  /// `store` is on the engine's strand and must outlive `io`. `by_client`: figures of each client.
  static Result<std::shared_ptr<Metrics>> open(const std::filesystem::path& history,
                                               StoreThread& store, bool by_client,
                                               Traces traces = nullptr);

  /// Measures every few seconds, until `stop`, how long the engine's strand and the store make
  /// others wait. On the engine's strand.
  Awaitable<void> watch(std::shared_ptr<std::atomic<bool>> stop);
  /// Makes the page. Any strand.
  Awaitable<Result<std::string>> page(EngineStatus status);

 private:
  Metrics(std::unique_ptr<HistoryReader> reader, StoreThread& store, Traces traces)
      : reader_(std::move(reader)), store_(store), traces_(std::move(traces)) {}
  Awaitable<MeasuredWaits> waits() const;

  std::unique_ptr<HistoryReader> reader_;  // On thread_.
  StoreThread& store_;
  const Traces traces_;
  MeasuredWaits waits_;  // On the engine's strand.
  Offload thread_{1};
};

}  // namespace fl::server
