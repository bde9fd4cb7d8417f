// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/options.hpp"

#include "client/command_line.hpp"
#include "examples/sim/attack.hpp"
#include "server/app/command_line.hpp"
#include "server/run/masked_settings.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/base/version.hpp"
#include "shared/flags/flags.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

namespace fl::sim {

namespace {

constexpr std::uint32_t clients_max = 100'000;
constexpr const char* model_of_trainer = "custom:simulated";  // The model's name without --model.

/// Throws for flags that exclude each other, and for a missing flag.
void check_together(const CLI::App& app, SimOptions& options) {
  const bool is_custom = options.settings.model.starts_with(custom_prefix);
  if (!options.trainer.is_set()) {
    if (is_custom)
      throw CLI::RequiredError("--model custom:NAME: --trainer COMMAND, which trains it,");
    return;
  }
  client::refuse_beside_trainer(
      app, {"--data", "--partition", "--partition-seed", "--holdout", "--device", "--precision",
            "--test", "--epochs-from", "--malicious", "--attack"});
  if (options.given.contains("model") && !is_custom)
    throw CLI::ValidationError("--model", "is custom:NAME where --trainer trains");
  if (!is_custom) options.settings.model = model_of_trainer;
}

/// Replaces defaults that don't fit the simulation. choose_run() logs those of a masked run.
void set_fitting_defaults(SimOptions& options) {
  server::RunSettings& settings = options.settings;
  if (!options.given.contains("min-clients"))
    settings.min_clients = std::min(settings.min_clients, options.clients);
  [[maybe_unused]] const std::string set = server::set_masked_defaults(settings, options.given);
}

std::string attack_help() {
  return fmt::format("What they do: {}", alternatives(attack_rows().subspan(1), &AttackRow::usage));
}

/// Flags for clients that attack or drop out.
void declare_troubles(CLI::App& app, SimOptions& options) {
  app.add_option("--malicious", options.malicious, "How many clients attack: client-1 and so on")
      ->check(whole_number(0, clients_max))
      ->capture_default_str();
  app.add_option("--attack", options.attack, attack_help())->capture_default_str();
  app.add_option("--drop-outs", options.drop_outs.chance,
                 "The chance that a client drops out of a round: its connection breaks at any "
                 "message after its training")
      ->check(real_number_in(0, 1))
      ->capture_default_str();
  app.add_option("--drop-seconds", options.drop_outs.seconds,
                 "For how many seconds a client that drops out is away")
      ->check(real_number_in(0, 1e6))
      ->capture_default_str();
}

}  // namespace

int parse_options(int argc, char** argv, SimOptions& options) {
  CLI::App app{
      "Simulates a whole federation in one process: the server and its clients. Bytes are counted\n"
      "as if they were sent over a network. Each call begins a new run in --state; show it with\n"
      "'fl-server history --state DIR'.\n"
      "  fl-sim --clients 100 --model synthetic:1000000 --rounds 5\n"
      "  fl-sim --clients 10 --data fashion-mnist --partition dirichlet:0.5 "
      "--test fashion-mnist:test\n"
      "  fl-sim --clients 100 --trainer 'python3 train.py'   simulate a model of your own",
      "fl-sim"};
  app.footer(documents_footer());
  app.set_version_flag("--version", fmt::format("fl-sim {}, protocol {}",
                                                software_version_and_commit, protocol_version));
  add_config_flag(app, "A TOML file with any of these flags (rounds = 500)");
  // The last of repeated flags counts, so that a user can append flags to a script's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  app.add_option("--state", options.state, "Folder for the history and the checkpoints")
      ->check(not_empty())
      ->capture_default_str();
  add_fixed_modes_flag(app);
  app.add_option("--clients", options.clients, "Number of virtual clients; each has a shard")
      ->check(whole_number_in(1, clients_max))
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "Number of clients that train at the same time, and of programs that --trainer "
                 "starts; 0 means one per core")
      ->check(whole_number_in(0, 4096))
      ->capture_default_str();
  app.add_option("--test", options.test,
                 "Evaluate every version on this data, for example fashion-mnist:test");
  app.add_option("--epochs-from", options.epochs_from,
                 "Simulate clients of unequal speed: in each round each client trains a random "
                 "number of epochs from this to --local-epochs")
      ->check(whole_number_in(1, 1'000'000));
  declare_troubles(app, options);
  app.add_option("--json", options.json, "Write the run's rounds to this file");
  app.add_flag("--log-json", options.log_json, "Log as JSON objects");
  app.add_flag("--verbose", options.verbose, "Log more");
  // By default there is no deadline, as virtual clients are never late, and nothing is held out.
  options.settings.deadline_s = 0;
  options.learn.holdout = 0;
  declare_run_settings(app, options.settings, options.given);
  // Virtual clients have nobody's data: so that calls can be repeated, no seed is drawn.
  app.get_option("--seed")->default_str(fmt::format("{}", options.settings.seed));
  client::declare_data_flags(app, options.learn);
  client::declare_trainer_flags(app, options.trainer);

  try {
    app.parse(argc, argv);
    check_together(app, options);
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  }
  auto& settings = options.settings;
  set_fitting_defaults(options);
  if (const auto why = idle_setting(settings, options.given); !why.empty()) {
    std::cerr << "fl-sim: " << why << "\n";
    return wrong_usage;
  }
  options.threads = threads_for(options.threads);
  options.learn.model = settings.model;
  options.learn.shards = options.clients;
  options.learn.threads = 1;  // Several clients with one thread each use the cores best.
  return -1;
}

}  // namespace fl::sim
