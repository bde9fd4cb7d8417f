// SPDX-License-Identifier: Apache-2.0
#include "server/app/run_commands.hpp"

#include "server/app/command_audit.hpp"
#include "server/app/control.hpp"
#include "server/app/open_store.hpp"
#include "server/app/run_queue.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <limits>

namespace fl::server {

namespace {

struct QueueOptions : RunOptions {
  RunId drop = 0;  // Takes this run out of the queue; 0: adds one.
};

struct EndRunOptions : SharedOptions {
  RunId run = 0;
};

void declare_queue(CLI::App& command, QueueOptions& options) {
  command
      .add_option("--drop", options.drop, "Remove this run from the queue instead of adding one")
      ->check(whole_number(1, std::numeric_limits<RunId>::max()));
}

Result<void> drop_queued_run(const QueueOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  if (auto dropped = drop_run(store->runs(), options.drop); !dropped)
    return dropped.error().at("--drop");
  fmt::print("run {} is no longer queued\n", options.drop);
  return {};
}

Result<void> queue_another_run(const QueueOptions& options) {
  if (options.drop != 0) return drop_queued_run(options);
  if (options.given.empty())
    return Error(Errc::invalid_input,
                 "a queued run has settings of its own: give at least one, such as --rounds 20. "
                 "'fl-server history --runs' shows the runs that wait");
  FL_TRY(const auto store, open_store(options.state, false));
  FL_TRY(const auto before, store->runs().oldest_open());
  FL_TRY(const auto run, queue_run(store->runs(), options));
  fmt::print("run {} ({}) of '{}' with {} rounds is queued{}\n", run.id, run.key, run.model,
             run.rounds_total,
             before ? fmt::format("; run {} is not finished. Clients without --stay exit when that "
                                  "run ends, and must be started again",
                                  before->id)
                    : "; a server that waits with --stay begins it now, otherwise the next start "
                      "does");
  return {};
}

bool adds_run(const QueueOptions& options) { return options.drop == 0; }

Act queue_act(const QueueOptions& options) {
  if (options.drop != 0) return {fmt::format("takes run {} out of the queue", options.drop)};
  return {options.given.empty() ? "" : "queues a run with " + given_settings(options)};
}

void declare_end_run(CLI::App& command, EndRunOptions& options) {
  command.add_option("RUN", options.run, "The number of the run")
      ->required()
      ->check(whole_number(1, std::numeric_limits<RunId>::max()));
}

Result<void> end_run_now(const EndRunOptions& options) {
  FL_TRY(const auto store, open_store(options.state, false));
  FL_CHECK(end_run(*store, options.run, command_line_user()));
  fmt::print("run {} ends after the round that is under way\n", options.run);
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
      "end-run", "Ends a run after the round under way, beside the running server",
      {.declare = declare_end_run, .run = end_run_now, .act = end_run_act});
}

}  // namespace fl::server
