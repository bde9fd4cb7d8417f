// SPDX-License-Identifier: Apache-2.0
#include "server/app/run_commands.hpp"

#include "server/app/asked_run.hpp"
#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/open_store.hpp"
#include "server/app/run_queue.hpp"
#include "server/history/run_name.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"
#include "shared/params/layout.hpp"

#include <fmt/format.h>

#include <string>

namespace fl::server {

namespace {

struct QueueOptions : RunOptions {
  std::string drop;  // The run to take out of the queue; "": adds one.
};

struct EndRunOptions : SharedOptions {
  std::string run;
};

void declare_queue(CLI::App& command, QueueOptions& options) {
  add_run_option(command, "--drop", options.drop,
                 "Remove a run that has no model yet from the queue, instead of adding one");
}

Result<void> drop_queued_run(const QueueOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  const auto run = asked_run(store->runs(), options.drop);
  if (!run) return run.error().at("--drop");
  const auto done = drop_run(*store, *run, command_line_user());
  if (!done) return done.error().at("--drop");
  fmt::print("{}\n", *done);
  return {};
}

/// Why the client can't train the run, as far as is known: some train only one model, or have a
/// trainer with tensors of its own. "" if nothing speaks against it.
std::string why_unfit(const ClientRecord& client, const RunRecord& run, const Digest& tensors) {
  if (!client.model.empty() && client.model != run.model)
    return fmt::format("{} trains only '{}'", client.name,
                       printable(client.model, limits::run_model_bytes_max));
  if (!client.tensors.empty() && client.tensors != tensors.hex())
    return fmt::format("the trainer of {} has other tensors", client.name);
  return "";
}

/// Says so if no trainer that was here lately can train the run.
Result<void> warn_if_unfit(Store& store, const RunRecord& run) {
  const double since = Clock::unix_seconds() - seconds(limits::lately);
  FL_TRY(const RunSettings settings, settings_from_json(run.config_json));
  FL_TRY(const Layout layout, model_layout(settings));
  const Digest tensors = digest_in_any_order(layout);
  FL_TRY(const auto clients, store.members().all());
  std::string others;
  for (const ClientRecord& client : clients) {
    if (client.evaluator || client.revoked_at != 0 || client.last_seen_at < since) continue;
    const std::string why = why_unfit(client, run, tensors);
    if (why.empty()) return {};
    others += (others.empty() ? "" : ", ") + why;
  }
  if (others.empty()) return {};
  log_warn(
      "none of the clients that were here in the last day trains '{}': {}. Start one that does; "
      "meanwhile the run lets others go first (--queue-patience)",
      run.model, printable(others, limits::reason_bytes_max));
  return {};
}

Result<void> queue_another_run(const QueueOptions& options) {
  if (!options.drop.empty()) return drop_queued_run(options);
  if (options.given.empty())
    return Error(Errc::invalid_input,
                 "a queued run has settings of its own: give at least one, such as --rounds 20. "
                 "'fl-server history --runs' shows the runs that wait");
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const auto before, store->runs().next_open());
  FL_TRY(const std::string taken_over, others_of_newest(store->runs(), options));
  FL_TRY(const auto run, queue_run(store->runs(), options));
  fmt::print("{} with {} rounds is queued{}\n", to_text(name_of(run)), run.rounds_total,
             before ? fmt::format("; run {} is not finished. Clients without --stay exit when that "
                                  "run ends, and must be started again",
                                  before->id)
                    : "; a server that waits with --stay begins it now, otherwise the next start "
                      "does");
  if (!taken_over.empty()) fmt::print("{}\n", taken_over);
  return warn_if_unfit(*store, run);
}

bool adds_run(const QueueOptions& options) { return options.drop.empty(); }

Act queue_act(const QueueOptions& options) {
  if (!options.drop.empty()) return {fmt::format("takes run {} out of the queue", options.drop)};
  return {options.given.empty() ? "" : "queues a run with " + given_settings(options)};
}

void declare_end_run(CLI::App& command, EndRunOptions& options) {
  add_run_option(command, "RUN", options.run, "The run")->required();
}

Result<void> end_run_now(const EndRunOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const RunRecord run, asked_run(store->runs(), options.run));
  FL_TRY(const std::string done, end_run(*store, run, command_line_user()));
  fmt::print("{}\n", done);
  return {};
}

Act end_run_act(const EndRunOptions& options) { return {fmt::format("ends run {}", options.run)}; }

}  // namespace

Command queue_command() {
  return make_command<QueueOptions>(
      "queue",
      "Adds a run to the queue, with the run's flags that are given (see fl-server --help). "
      "The server begins it once all runs before it are finished; with --stay the server "
      "waits for it",
      {.declare = declare_queue,
       .run = queue_another_run,
       .uses_settings = adds_run,
       .act = queue_act});
}

Command end_run_command() {
  return make_command<EndRunOptions>(
      "end-run",
      "Ends a run, beside the running server: after the round under way, or at once if it has no "
      "model yet",
      {.declare = declare_end_run, .run = end_run_now, .act = end_run_act});
}

}  // namespace fl::server
