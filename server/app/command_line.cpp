#include "server/app/command_line.hpp"

#include "shared/algorithm/local_work.hpp"
#include "shared/base/flags.hpp"
#include "shared/base/version.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <span>
#include <string_view>
#include <type_traits>

namespace fl {

namespace {

/// A flag of the run's settings; `given` notes that it came from the user (command line or file).
template <class T>
CLI::Option* setting(CLI::App& app, std::set<std::string>& given, const std::string& name, T& value,
                     const std::string& help) {
  const auto take = [&given, &value, name](const T& wanted) {
    value = wanted;
    given.insert(name);
  };
  auto* option = app.add_option_function<T>("--" + name, take, help)
                     ->group("The run (kept with it; a restart needs none of them)")
                     ->default_str(fmt::format("{}", value));
  // CLI11 reads "-1" into 64 bits without a sign as 2^64 - 1.
  if constexpr (std::is_unsigned_v<T>) option->check(number_from(0));
  return option;
}

/// The first flag on the command line that the sub-command would not heed, and why; empty if there
/// is none. A file of flags may serve several commands, and is not asked.
std::string unheeded_flag(int argc, char** argv, const ServerOptions& options) {
  constexpr std::array<std::string_view, 6> serving = {"--listen",     "--advertise", "--admin",
                                                       "--ready-file", "--new-run",   "--stay"};
  using Command = ServerOptions::Command;
  if (options.command == Command::serve) return {};
  for (const std::string_view word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    const auto name = word.substr(0, word.find('='));
    if (std::ranges::find(serving, name) != serving.end())
      return fmt::format("{} is for the server itself, not for a sub-command", name);
    const bool is_of_run =
        name.starts_with("--") && options.given.contains(std::string(name.substr(2)));
    if (is_of_run && options.command == Command::queue && options.drop != 0)
      return fmt::format("{} is a setting of a run, and --drop makes none", name);
    if (is_of_run && options.command != Command::queue)
      return fmt::format("{} is a setting of a run, which this sub-command neither has nor changes",
                         name);
  }
  return {};
}

}  // namespace

void declare_run_settings(CLI::App& app, RunSettings& s, std::set<std::string>& given) {
  setting(app, given, "rounds", s.rounds, "How many rounds");
  setting(app, given, "model", s.model,
          builtin_model_names() +
              "; or custom:NAME, what clients in other languages call theirs, with the tensors of "
              "--initial-weights");
  setting(app, given, "strategy", s.strategy,
          "The federated method, NAME:KEY=VALUE,… (see 'fl-server strategies')");
  setting(app, given, "min-clients", s.min_clients,
          "Clients before a round begins, and updates before it may close");
  setting(app, given, "clients-per-round", s.clients_per_round,
          "Clients sampled each round; 0: by --fraction");
  setting(app, given, "fraction", s.fraction, "Part of the connected clients sampled each round");
  setting(app, given, "sampling", s.sampling,
          "Who: uniform, examples, round-robin, power-of-choice[:d=D] or oort[:alpha=2,…]");
  setting(app, given, "mode", s.mode,
          "sync[:late=N] or async[:buffer=K,late=N,weight=sqrt,ahead=N,sync=T,compensate=L]");
  setting(app, given, "over-select", s.over_select,
          "Ask this many times the clients that the round needs; 0: as their pace asks for");
  setting(app, given, "deadline", s.deadline_s,
          "Seconds after which a round closes with what it has, or, asynchronous, a task is given "
          "to another; 0: never");
  setting(app, given, "local-epochs", s.local_epochs, "Passes over the local data in a round")
      ->check(number_from(1))
      ->default_str("1");
  setting(app, given, "local-steps", s.local_steps,
          "Mini-batch steps in a round, instead of epochs");
  setting(app, given, "local-steps-schedule", s.local_steps_schedule,
          "How many of --local-steps a round takes: constant, warmup:rounds=10 (from 1 to all), "
          "post-local:from=10 (1 before that round) or adaptive (fewer as the loss falls)");
  setting(app, given, "local-seconds", s.local_seconds,
          "Seconds to train in a round, by the client's clock: as many steps as fit, one at least, "
          "and no more than --local-steps or --local-epochs where these are given; 0: no bound");
  setting(app, given, "batch-size", s.batch_size, "Examples in a mini-batch");
  setting(app, given, "accumulate", s.accumulate,
          "Mini-batches whose gradients make one step: as one batch of so many times --batch-size, "
          "in the memory of one");
  setting(app, given, "optimizer", s.optimizer,
          "Of the clients: sgd, nesterov, adam or adamw[:beta1=0.9,beta2=0.999,epsilon=1e-8]");
  setting(app, given, "lr", s.lr, "Learning rate of the clients");
  setting(app, given, "lr-schedule", s.lr_schedule,
          "By round: constant, cosine[:floor=0] or step[:every=10,factor=0.1], each also with "
          "warmup=N, as in constant:warmup=5");
  setting(app, given, "momentum", s.momentum, "Momentum of sgd and nesterov, new every round");
  setting(app, given, "weight-decay", s.weight_decay, "Weight decay of the clients");
  setting(app, given, "proximal-mu", s.proximal_mu,
          "Pull of every strategy's clients towards the global model; as fedprox:mu");
  setting(app, given, "codec", s.codec,
          "How updates are coded (see 'fl-server codecs'; none: as they are), or "
          "auto[:FINEST|…|COARSEST]: for each "
          "client the finest that its line brings in time");
  setting(app, given, "downlink-codec", s.downlink_codec,
          "How model steps are coded for clients that have the version before");
  setting(app, given, "seed", s.seed, "Of initial weights, sampling and shuffles");
  setting(app, given, "target-accuracy", s.target_accuracy,
          "Stop when an evaluator measures it (0.86 for 86%)");
  setting(app, given, "patience", s.patience,
          "Stop after so many versions without a better accuracy; 0: never");
  setting(app, given, "keep-checkpoints", s.keep_checkpoints, "Newest model versions kept; 0: all");

  setting(app, given, "initial-weights", s.initial_weights,
          "Begin from this safetensors file; otherwise from the seed")
      ->check(CLI::ExistingFile);
}

std::string idle_setting(const RunSettings& settings, const std::set<std::string>& given) {
  const auto optimizer = parse_optimizer(settings.optimizer);
  if (optimizer && !optimizer->is_sgd() && given.contains("momentum")) {
    return fmt::format("--momentum is of sgd and nesterov; --optimizer {} has beta1=",
                       settings.optimizer);
  }
  return {};
}

int parse_options(int argc, char** argv, ServerOptions& options) {
  CLI::App app{
      "Coordinates a federation: samples clients, sends them the model, adds up their updates.\n"
      "Without a sub-command it serves: fl-server --rounds 500",
      "fl-server"};
  app.set_version_flag("--version", fmt::format("fl-server {}, protocol {}",
                                                software_version_and_commit, protocol_version));
  add_config_flag(app, "A TOML file with any of these flags (rounds = 500)");
  app.fallthrough();
  // Given twice, the last one counts: so a script's flags can be overridden behind them.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  auto& s = options.settings;

  app.add_option("--state", options.state, "Folder for history, checkpoints, spool and identity")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--listen", options.listen, "HOST:PORT for clients; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--advertise", options.advertise,
                 "HOST or HOST:PORT that clients reach this server by, for join tokens");
  app.add_option("--admin", options.admin,
                 "HOST:PORT of /healthz, /metrics, /api/rounds, /api/choices; 'off' for none")
      ->capture_default_str();
  app.add_option("--ready-file", options.ready_file,
                 "Receives the real addresses as JSON once listening");
  app.add_flag("--new-run", options.new_run,
               "Begin another run in the same state; those that are not over are ended");
  app.add_flag("--stay", options.stay, "After the run, stay and wait for the next (see 'queue')");
  app.add_flag("--log-json", options.log_json, "Log JSON objects");
  app.add_flag("--verbose", options.verbose, "Log more");

  declare_run_settings(app, s, options.given);

  auto* queue = app.add_subcommand(
      "queue",
      "Queues another run behind those that are not over, with the flags of a run that are given "
      "(see fl-server --help); the server begins it when its time has come, with --stay also "
      "later");
  queue->add_option("--drop", options.drop, "Instead: takes this run out of the queue")
      ->check(number_from(1));
  auto* history = app.add_subcommand(
      "history", "Prints the rounds of the run under way, or of the newest that has any");
  history->add_option("--run", options.run, "The run with this number")->check(number_from(1));
  history->add_flag("--all", options.all_runs, "The rounds of all runs");
  history->add_flag("--runs", options.runs, "The runs themselves, those in the queue too");
  history->add_flag("--codecs", options.codecs,
                    "What each codec sent, cost and lost, and the bytes for a point of accuracy");
  history
      ->add_flag("--choices", options.choices,
                 "Which codec --codec auto chose for each client in each round, and why")
      ->excludes("--codecs");
  history
      ->add_flag("--events", options.events,
                 "Who came and went, what was refused and why; the newest 100,000")
      ->excludes("--codecs")
      ->excludes("--choices");
  for (const char* other : {"--run", "--all", "--codecs", "--choices", "--events"})
    history->get_option("--runs")->excludes(other);
  auto* clients = app.add_subcommand("clients", "Prints the enrolled clients");
  for (auto* command : {history, clients}) {
    const auto choose = [&options](Format format) {
      return [&options, format] { options.format = format; };
    };
    auto* json = command->add_flag_callback("--json", choose(Format::json), "As JSON");
    command->add_flag_callback("--csv", choose(Format::csv), "As CSV")->excludes(json);
  }
  auto* enroll = app.add_subcommand(
      "enroll", "Makes a join token for a client and prints it, alone, on standard output");
  enroll->add_option("--name", options.name, "The client's name")->required();
  enroll->add_option("--expires", options.expires_s, "Seconds that the token is good for")
      ->capture_default_str();
  auto* revoke = app.add_subcommand("revoke", "Ends a client's sessions and admits it no more");
  revoke->add_option("NAME", options.name, "The client's name")->required();
  auto* codecs = app.add_subcommand("codecs", "Lists the codecs");
  auto* strategies = app.add_subcommand("strategies", "Lists the federated methods");
  app.require_subcommand(0, 1);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  }
  if (!s.initial_weights.empty())  // For a server that runs elsewhere, or later.
    s.initial_weights = std::filesystem::absolute(s.initial_weights);
  using Command = ServerOptions::Command;
  options.command = *history      ? Command::history
                    : *clients    ? Command::clients
                    : *enroll     ? Command::enroll
                    : *revoke     ? Command::revoke
                    : *codecs     ? Command::codecs
                    : *strategies ? Command::strategies
                    : *queue      ? Command::queue
                                  : Command::serve;
  for (const auto& why : {unheeded_flag(argc, argv, options), idle_setting(s, options.given)}) {
    if (why.empty()) continue;
    std::cerr << "fl-server: " << why << "\n";
    return wrong_usage;
  }
  return -1;
}

}  // namespace fl
