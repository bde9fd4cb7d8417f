// SPDX-License-Identifier: Apache-2.0
#include "server/app/history_commands.hpp"

#include "server/app/asked_run.hpp"
#include "server/app/open_store.hpp"
#include "server/history/format.hpp"
#include "server/history/plot.hpp"
#include "server/run/best_of_run.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/limits.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

struct HistoryOptions : SharedOptions {
  std::string run;  // "": the run under way, or the newest.
  bool all_runs = false;
  bool runs = false;
  bool codecs = false;   // The cost and the gain of each codec, instead of rounds.
  bool choices = false;  // Which client was asked for which codec, and why, instead of rounds.
  bool events = false;   // Events, instead of rounds.
  bool follow = false;   // Events, and those that come.
  bool metrics = false;  // All metrics of each version, instead of rounds.
  std::string plot;      // The SVG file to write; "": none.
  Format format = Format::table;
};

struct ClientsOptions : SharedOptions {
  Format format = Format::table;
};

struct AuditOptions : SharedOptions {
  std::string client;  // "": all.
  Format format = Format::table;
};

void declare_formats(CLI::App& command, Format& format) {
  const auto choose = [&format](Format chosen) { return [&format, chosen] { format = chosen; }; };
  auto* as_json = command.add_flag_callback("--json", choose(Format::json), "Print JSON");
  command.add_flag_callback("--csv", choose(Format::csv), "Print CSV")->excludes(as_json);
}

void declare_history(CLI::App& command, HistoryOptions& options) {
  add_run_option(command, "--run", options.run, "Those of this run");
  command.add_flag("--all", options.all_runs, "Those of all runs");
  command.add_flag("--runs", options.runs, "The runs themselves, with those in the queue");
  command.add_flag("--codecs", options.codecs,
                   "For each codec: what it sent, cost and lost, and the bytes for one point of "
                   "accuracy");
  command
      .add_flag("--choices", options.choices,
                "Which codec --codec auto chose for each client in each round, and why")
      ->excludes("--codecs");
  command
      .add_flag("--events", options.events,
                "The newest 100,000 events: who came and went, what was refused and why")
      ->excludes("--codecs")
      ->excludes("--choices");
  command
      .add_flag("--follow", options.follow,
                "With --events: go on printing events as they come, until Ctrl-C. With --json each "
                "is a line")
      ->needs("--events");
  command
      .add_flag("--metrics", options.metrics,
                "All metrics of each version, and who has measured them")
      ->excludes("--codecs")
      ->excludes("--choices")
      ->excludes("--events");
  command
      .add_option("--plot", options.plot,
                  "Draw the run's main metric and losses over rounds, time and bytes into this SVG "
                  "file")
      ->check(not_empty())
      ->excludes("--all")
      ->excludes("--codecs")
      ->excludes("--choices")
      ->excludes("--events")
      ->excludes("--metrics");
  for (const char* other :
       {"--plot", "--run", "--all", "--codecs", "--choices", "--events", "--metrics"})
    command.get_option("--runs")->excludes(other);
  declare_formats(command, options.format);
  command.get_option("--follow")->excludes("--csv");
  for (const char* other : {"--json", "--csv"}) command.get_option("--plot")->excludes(other);
}

template <class Record>
Result<void> print_rows(const Result<std::vector<Record>>& rows, Format format) {
  if (!rows) return rows.error();
  fmt::print("{}", format_rows(*rows, format));
  return {};
}

/// The run whose events are printed by default: the one that a server has under way or waits for,
/// also before its first round; else the newest. Its events say why it waits.
Result<std::optional<RunRecord>> run_of_events(Runs& runs) {
  FL_TRY(auto open, runs.oldest_open());
  return open ? std::move(open) : runs.latest();
}

/// The run whose records are printed; none: those of all runs.
Result<std::optional<RunId>> run_to_show(Runs& runs, const HistoryOptions& options) {
  if (!options.run.empty()) {
    const auto asked = asked_run(runs, options.run);
    if (!asked) return asked.error().at("--run");
    return std::optional(asked->id);
  }
  if (options.all_runs) return std::optional<RunId>();
  FL_TRY(const auto shown, options.events ? run_of_events(runs) : runs.shown());
  return shown ? std::optional(shown->id) : std::nullopt;
}

Result<void> plot_run(Store& store, const HistoryOptions& options) {
  FL_TRY(const RunRecord run, asked_run(store.runs(), options.run));
  FL_TRY(const auto rounds, store.summaries().rounds(run.id));
  FL_TRY(const std::string svg, plot_svg(run, rounds));
  FL_CHECK(posix_files().write_atomically(options.plot, bytes_of(svg)));
  fmt::print("run {} with {} rounds is drawn in {}\n", run.id, rounds.size(), options.plot);
  return {};
}

/// Prints events until the process is ended.
Result<void> follow_events(Store& store, std::optional<RunId> run, Format format) {
  std::int64_t seen = 0;
  std::int64_t version_seen = -1;
  for (;;) {
    FL_TRY(const std::int64_t version, store.data_version());
    if (std::exchange(version_seen, version) != version) {
      FL_TRY(const auto events, store.events().since(seen, run));
      for (const EventRecord& event : events) fmt::print("{}", format_event(event, format));
      std::fflush(stdout);
      if (std::ferror(stdout) != 0) return Error(Errc::io, "the output is closed");
    }
    std::this_thread::sleep_for(limits::history_pace);
  }
}

Result<void> print_history(const HistoryOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  if (options.runs) return print_rows(store->runs().all(), options.format);
  if (!options.plot.empty()) return plot_run(*store, options);
  FL_TRY(const auto run, run_to_show(store->runs(), options));
  if (options.codecs) return print_rows(store->summaries().codecs(run), options.format);
  if (options.choices) return print_rows(store->summaries().codecs_asked(run), options.format);
  if (options.follow) return follow_events(*store, run, options.format);
  if (options.events) return print_rows(store->events().all(run), options.format);
  if (options.metrics) return print_rows(store->summaries().metrics(run), options.format);
  if (options.format == Format::table && run) {
    FL_TRY(const auto record, store->runs().find(*run));
    if (record) fmt::print("{}", format_run_header(*record));
    FL_TRY(const auto newest, store->runs().latest());
    if (options.run.empty() && newest && newest->id != *run)
      fmt::print("(run {} is newer: --run {} shows it, --runs lists all)\n", newest->id,
                 newest->id);
  }
  FL_TRY(const auto rounds, store->summaries().rounds(run));
  FL_TRY(const auto best, best_of_runs(*store, rounds));
  fmt::print("{}", format_rows(rounds, best, options.format));
  return {};
}

void declare_clients(CLI::App& command, ClientsOptions& options) {
  declare_formats(command, options.format);
}

Result<void> print_clients(const ClientsOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  return print_rows(store->members().all(), options.format);
}

void declare_audit(CLI::App& command, AuditOptions& options) {
  command.add_option("--client", options.client, "Only the rows of this client");
  declare_formats(command, options.format);
}

Result<void> print_audit(const AuditOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  return print_rows(store->audit().all(options.client), options.format);
}

}  // namespace

Command history_command() {
  return make_command<HistoryOptions>(
      "history", "Prints the rounds of the run under way, or of the newest run that has any",
      {.declare = declare_history, .run = print_history});
}

Command clients_command() {
  return make_command<ClientsOptions>("clients", "Prints the enrolled clients",
                                      {.declare = declare_clients, .run = print_clients});
}

Command audit_command() {
  return make_command<AuditOptions>(
      "audit",
      "Prints who came in, who was kept out, and who did what: enrolments, takeovers of a "
      "name, refusals, displaced sessions, renewals, revocations, logins, and all that was "
      "done at the command line and at the admin pages. Nothing is ever removed from it",
      {.declare = declare_audit, .run = print_audit});
}

}  // namespace fl::server
