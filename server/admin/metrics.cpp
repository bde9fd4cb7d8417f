// SPDX-License-Identifier: Apache-2.0
#include "server/admin/metrics.hpp"

#include "shared/base/version.hpp"

#include <fmt/format.h>

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

namespace fl::server {
namespace {

constexpr auto metrics_look = std::chrono::seconds(5);

/// A label's value with what must be escaped in it.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return out;
}

class Page {
 public:
  /// Begins a family: `name` without "tributary_".
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = fmt::format("tributary_{}", name);
    begin(type, help);
  }
  /// Begins a family whose name all programs have ("process_..."): it gets no "tributary_".
  void common_family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    begin(type, help);
  }
  /// `labels`: the text between the braces, or "".
  void value(double value, std::string_view labels = "") {
    const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
    fmt::format_to(std::back_inserter(text_), "{}{} {}\n", name_, braces, value);
  }
  void single(std::string_view name, std::string_view type, std::string_view help, double number) {
    family(name, type, help);
    value(number);
  }
  void histogram(std::string_view name, std::string_view help, const SecondsHistogram& histogram) {
    family(name, "histogram", help);
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < histogram.bounds.size(); ++i) {
      below += histogram.counts[i];
      fmt::format_to(std::back_inserter(text_), "{}_bucket{{le=\"{}\"}} {}\n", name_,
                     SecondsHistogram::bounds[i], below);
    }
    fmt::format_to(std::back_inserter(text_),
                   "{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name_,
                   histogram.count, histogram.sum);
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void begin(std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help,
                   type);
  }

  std::string name_;
  std::string text_;
};

void add_run(const EngineStatus& status, Page& page) {
  page.family("build_info", "gauge", "Always 1; the label has the version.");
  page.value(1, fmt::format("version=\"{}\"", software_version));
  page.single("round", "gauge", "The round under way, or the last.", status.round);
  page.single("rounds_planned", "gauge", "Rounds of the whole run.", status.rounds_total);
  page.single("paused", "gauge", "1 while the run waits for disk, files or the database, else 0.",
              status.phase.starts_with("paused") ? 1 : 0);
  page.single("run_started_timestamp_seconds", "gauge", "When this process began the run.",
              status.started_at);
  page.single("clients_connected", "gauge", "Training clients connected.", status.clients);
  page.single("evaluators_connected", "gauge", "Evaluating clients connected.", status.evaluators);
  page.single("members_present", "gauge", "Members that are here and wait for a run, or get ready.",
              status.present);
  page.single("round_clients_offered", "gauge", "Clients asked in the round under way.",
              status.asked);
  page.single("round_clients_accepted", "gauge", "Updates accepted in the round under way.",
              status.accepted);
  page.single("round_updates_pending", "gauge",
              "Clients asked in the round under way whose update is not accepted.",
              status.asked > status.accepted ? status.asked - status.accepted : 0);
  page.single("received_bytes_total", "counter",
              "WebSocket payload bytes from clients since the run began here.",
              static_cast<double>(status.bytes_up));
  page.single("sent_bytes_total", "counter",
              "WebSocket payload bytes to clients since the run began here.",
              static_cast<double>(status.bytes_down));
  for (const MetricFigure& figure : status.metrics) {
    if (figure.name == "accuracy")
      page.single("accuracy", "gauge", "Newest evaluation's accuracy, 0 to 1.", figure.value);
  }
  if (status.metrics.empty()) return;
  page.family("metric", "gauge", "What evaluators measured of the newest version, by name.");
  for (const MetricFigure& figure : status.metrics)
    page.value(figure.value, fmt::format("name=\"{}\"", escaped(figure.name)));
}

void add_queues(const QueueLengths& queues, const TraceCounts& traces, Page& page) {
  page.family("queue_length", "gauge", "What waits or is being done, by queue.");
  const std::array<std::pair<std::string_view, std::size_t>, 5> lengths{
      {{"store", queues.store},
       {"events", queues.events},
       {"verdicts", queues.verdicts},
       {"checks", queues.checks},
       {"traces", traces.rounds_waiting}}};
  for (const auto& [name, length] : lengths)
    page.value(static_cast<double>(length), fmt::format("queue=\"{}\"", name));
  page.family("transfers", "gauge", "Updates and versions under way, by direction.");
  page.value(static_cast<double>(queues.uploads), "direction=\"up\"");
  page.value(static_cast<double>(queues.downloads), "direction=\"down\"");
  page.single("transfer_buffer_bytes", "gauge", "Memory that these transfers may fill.",
              static_cast<double>(queues.buffer_bytes));
  page.single("trace_spans_sent_total", "counter", "Spans that the OpenTelemetry collector took.",
              static_cast<double>(traces.spans_sent));
  page.single("trace_spans_rejected_total", "counter", "Of these, spans that it rejected.",
              static_cast<double>(traces.spans_rejected));
  page.single("trace_rounds_dropped_total", "counter", "Rounds without a trace, or a whole one.",
              static_cast<double>(traces.rounds_dropped));
}

void add_tally(const HistoryTally& tally, Page& page) {
  page.histogram("round_duration_seconds", "How long rounds took.", tally.round_s);
  page.histogram("upload_duration_seconds", "How long accepted updates took to arrive.",
                 tally.upload_s);
  page.histogram("train_duration_seconds", "How long clients trained for accepted updates.",
                 tally.train_s);
  page.single("last_round_timestamp_seconds", "gauge",
              "When the last round closed; 0 before the first one.", tally.last_round_at);
  page.family("updates_total", "counter", "Tasks of closed rounds by what became of them.");
  for (const auto& [outcome, count] : tally.updates)
    page.value(static_cast<double>(count), fmt::format("outcome=\"{}\"", outcome));
  page.family("round_bytes_total", "counter", "Bytes of closed rounds by direction.");
  page.value(static_cast<double>(tally.bytes_up), "direction=\"up\"");
  page.value(static_cast<double>(tally.bytes_down), "direction=\"down\"");
  page.family("update_bytes_total", "counter", "Bytes of accepted updates as sent, by codec.");
  for (const auto& [codec, sums] : tally.codecs)
    page.value(static_cast<double>(sums.bytes), fmt::format("codec=\"{}\"", escaped(codec)));
  page.family("update_raw_bytes_total", "counter", "The same updates in fp32, by codec.");
  for (const auto& [codec, sums] : tally.codecs)
    page.value(static_cast<double>(sums.raw_bytes), fmt::format("codec=\"{}\"", escaped(codec)));
  page.family("events_total", "counter", "Events of the history by level.");
  for (const auto& [level, count] : tally.events)
    page.value(static_cast<double>(count), fmt::format("level=\"{}\"", level));
}

void add_clients(const HistoryTally& tally, Page& page) {
  if (tally.clients.empty()) return;
  page.family("client_updates_total", "counter", "Tasks of closed rounds by client and outcome.");
  for (const auto& [name, client] : tally.clients) {
    for (const auto& [outcome, count] : client.updates)
      page.value(static_cast<double>(count),
                 fmt::format("client=\"{}\",outcome=\"{}\"", escaped(name), outcome));
  }
  page.family("client_bytes_total", "counter", "Bytes of closed rounds by client and direction.");
  for (const auto& [name, client] : tally.clients) {
    const std::string label = escaped(name);
    page.value(static_cast<double>(client.bytes_up),
               fmt::format("client=\"{}\",direction=\"up\"", label));
    page.value(static_cast<double>(client.bytes_down),
               fmt::format("client=\"{}\",direction=\"down\"", label));
  }
}

/// The figures that Prometheus' own client libraries give of a process.
void add_process(Page& page) {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto total = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  page.common_family("process_cpu_seconds_total", "counter", "User and system time.");
  page.value(total(used.ru_utime) + total(used.ru_stime));
  std::ifstream pages("/proc/self/statm");
  double size = 0;
  double resident = 0;
  if (pages >> size >> resident) {
    page.common_family("process_resident_memory_bytes", "gauge", "Resident memory.");
    page.value(resident * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  std::error_code ec;
  double open = 0;
  for (auto entry = std::filesystem::directory_iterator("/proc/self/fd", ec);
       !ec && entry != std::filesystem::directory_iterator(); entry.increment(ec))
    ++open;
  rlimit files{};
  if (ec || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  page.common_family("process_open_fds", "gauge", "Open files.");
  page.value(open);
  page.common_family("process_max_fds", "gauge", "Files that may be open.");
  page.value(static_cast<double>(files.rlim_cur));
}

}  // namespace

std::string format_metrics(const EngineStatus& status, const HistoryTally& tally,
                           const MeasuredWaits& waits, const TraceCounts& traces) {
  Page page;
  add_run(status, page);
  add_queues(status.queues, traces, page);
  add_tally(tally, page);
  add_clients(tally, page);
  page.histogram("event_loop_lag_seconds", "How late the engine runs what is due.",
                 waits.loop_lag_s);
  page.histogram("store_wait_seconds", "How long an empty call of the store takes.",
                 waits.store_wait_s);
  add_process(page);
  return page.take();
}

Result<std::shared_ptr<Metrics>> Metrics::open(const std::filesystem::path& history,
                                               StoreThread& store, bool by_client, Traces traces) {
  FL_TRY(auto reader, HistoryReader::open(history, by_client));
  return std::shared_ptr<Metrics>(new Metrics(std::move(reader), store, std::move(traces)));
}

Awaitable<void> Metrics::watch(std::shared_ptr<std::atomic<bool>> stop) {
  while (!*stop) {
    const TimePoint due = Clock::now() + metrics_look;
    co_await sleep_until(due);
    waits_.loop_lag_s.add(seconds(Clock::now() - due));
    if (*stop || !store_.why_paused().empty()) continue;
    const TimePoint asked = Clock::now();
    auto nothing = [](Store&) { return success(); };
    const auto done = co_await store_.with_store(std::move(nothing));
    if (done) waits_.store_wait_s.add(seconds(Clock::now() - asked));
  }
}

Awaitable<MeasuredWaits> Metrics::waits() const { co_return waits_; }

Awaitable<Result<std::string>> Metrics::page(EngineStatus status) {
  auto read = [this]() -> Result<HistoryTally> {
    FL_CHECK(reader_->catch_up());
    return reader_->tally();
  };
  FL_CO_TRY(const HistoryTally tally, co_await thread_.run(std::move(read)));
  const MeasuredWaits waits = co_await on(store_.executor(), this->waits());
  TraceCounts traces;
  if (traces_) traces = traces_();
  co_return format_metrics(status, tally, waits, traces);
}

}  // namespace fl::server
