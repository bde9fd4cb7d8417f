// SPDX-License-Identifier: Apache-2.0
#include "client/command_line.hpp"

#include "client/learn/data/partition.hpp"
#include "client/learn/data/readers/readers.hpp"
#include "client/learn/precision.hpp"
#include "client/learn/torch_devices.hpp"
#include "client/members_command.hpp"
#include "client/predict_command.hpp"
#include "client/site/site_commands.hpp"
#include "client/site/site_flags.hpp"
#include "client/site_key_command.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/base/version.hpp"
#include "shared/flags/flags.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <limits>
#include <utility>

namespace fl::client {

namespace {

/// Parses "3/10" as shard 2 of 10. Returns an error text, or "".
std::string parse_shard(const std::string& text, LearnOptions& learn) {
  const auto slash = text.find('/');
  std::uint32_t number = 0;
  std::uint32_t count = 0;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  if (slash != std::string::npos) {
    const auto first = std::from_chars(begin, begin + slash, number);
    const auto second = std::from_chars(begin + slash + 1, end, count);
    const bool is_whole = first.ptr == begin + slash && second.ptr == end &&
                          first.ec == std::errc() && second.ec == std::errc();
    if (is_whole && number >= 1 && number <= count) {
      learn.shard = number - 1;
      learn.shards = count;
      return "";
    }
  }
  return fmt::format("'{}' is not K/N with K from 1 to N, for example 3/10", text);
}

/// Returns an error text, or "".
std::string check_device(const std::string& text) {
  if (gpu_number(text) || text == "cpu" || text == "cuda" || text == "auto") return "";
  return fmt::format("'{}' is none of cpu, cuda, cuda:N and auto", text);
}

/// Flags about the server: how to join it, and what to take from it.
void declare_server_flags(CLI::App& app, ClientOptions& options) {
  app.add_option("--join", options.join,
                 "Join the server with this token first (ignored if it was used before); '-' reads "
                 "it from standard input, so that other users of this machine can't see it");
  app.add_option("--join-file", options.join_file,
                 "The same with the token in a file, which may be gone once the client has joined")
      ->check(not_empty())
      ->excludes("--join");
  app.add_option("--name", options.name, "The name to join with (default: the token's)");
  app.add_option("--proxy", options.proxy,
                 "Reach the server through this HTTP proxy: http://[USER:PASSWORD@]HOST:PORT, or "
                 "'none'. A password belongs into the variable HTTPS_PROXY or a --config file, as "
                 "other users can see the command line (default: HTTPS_PROXY, ALL_PROXY, NO_PROXY)")
      ->check(not_empty());
  declare_traffic_flags(app, options.traffic, "this client");
  declare_secure_flags(app, options.secure);
  app.add_option("--max-parameters", options.parameters_max,
                 "Refuse models of the server with more parameters than this")
      ->check(whole_number(1, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  app.add_flag("--stay", options.stay, "When a run is over, wait for the next one");
  app.add_option("--trace", options.trace,
                 "Write what this client and its ranks do, and when, to this file, which "
                 "ui.perfetto.dev and chrome://tracing show")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_option("--max-wait", options.patience.wait_s,
                 "Give up, with exit code 3, when the server can't be reached for so many seconds "
                 "(default: never)")
      ->check(real_number_in(0.1, 1e9));
  app.add_option("--max-retries", options.patience.retries,
                 "Give up, with exit code 3, when so many attempts in a row to reach the server "
                 "after the first one have failed (default: never)")
      ->check(whole_number_in(1, 1'000'000'000));
}

/// Parses "NAME=VALUE". Returns an error text, or "".
std::string parse_variable(const std::string& text, TrainerCommand& trainer) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return fmt::format("'{}' is not NAME=VALUE", text);
  trainer.variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  return "";
}

/// Throws for flags that can't stand together, and for a flag that is missing.
void check_together(const CLI::App& app, const CLI::App& join, const CLI::App& initial,
                    const ClientOptions& options, bool is_own) {
  if (join && options.join.empty() && options.join_file.empty())
    throw CLI::RequiredError("TOKEN, - or --join-file FILE");
  if (is_own) return;
  if (app.count("--partition") > 0 && app.count("--shard") == 0 && !options.learn.evaluate_only)
    throw CLI::ValidationError("--partition",
                               "also needs --shard K/N, which says which shard is this client's");
  if (initial && !options.trainer.is_set()) throw CLI::RequiredError("--trainer or --trainer-once");
  check_site_flags(app, options.site);
  if (!options.trainer.is_set()) return;
  refuse_beside_trainer(
      app, {"--ranks", "--site", "--data", "--data-memory", "--skip-bad-files", "--partition",
            "--partition-seed", "--shard", "--holdout", "--keep-moments", "--device", "--precision",
            "--recompute", "--offload", "--hogwild"});
}

/// Parses "512MiB". Returns an error text, or "".
std::string parse_memory(const std::string& text, std::uint64_t& bytes) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = number_in<std::uint64_t>(std::string_view(text).substr(0, digits));
  const std::string unit = text.substr(digits);
  int shift = -1;
  for (const auto& [name, power] : {std::pair{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}}) {
    if (unit == name) shift = power;
  }
  if (number && shift >= 0 && *number > 0 && *number <= UINT64_MAX >> shift) {
    bytes = *number << shift;
    return "";
  }
  return fmt::format("'{}' is not a size of at least 1 byte, for example 4GiB, 500MiB or 65536",
                     text);
}

constexpr const char* about =
    "Takes part in a federation: trains on this machine's data and sends model updates, never "
    "the data.\n"
    "  fl-client --join TOKEN --data fashion-mnist        join a server, then train\n"
    "  fl-client --data fashion-mnist --shard 3/10        train, after joining once\n"
    "  fl-client --trainer 'python3 train.py'             train with a program of your own";

/// Flags about the part of the data that is this client's.
void declare_shard_flag(CLI::App& app, LearnOptions& learn) {
  app.add_option(
         "--shard",
         [&learn](const CLI::results_t& given) {
           if (const auto wrong = parse_shard(given.front(), learn); !wrong.empty())
             throw CLI::ValidationError("--shard", wrong);
           return true;
         },
         "Use part K of N of the data (default: all of it)")
      ->type_name("K/N");
}

void declare_hogwild_flag(CLI::App& app, LearnOptions& learn) {
  app.add_option(
         "--hogwild", learn.hogwild,
         "Threads that train the same weights without locks, on a CPU; they share the threads of "
         "--threads. With more than 1, results are not reproducible")
      ->check(whole_number_in(1, 4096))
      ->capture_default_str();
}

/// Flags that a program with a trainer of its own has added.
void declare_own_flags(CLI::App& app, const ClientProgram& program) {
  for (const ClientFlag& flag : program.flags)
    app.add_option(flag.name, *flag.value, flag.help)->capture_default_str();
}

/// The flags of fl-client, without sub-commands. `is_own`: for a program with a trainer of its own.
void declare_flags(CLI::App& app, const ClientProgram& program, ClientOptions& options,
                   bool is_own) {
  auto& learn = options.learn;
  app.add_option("--state", options.state,
                 "Folder for this client's key, certificate and unsent updates")
      ->check(not_empty())
      ->capture_default_str();
  add_fixed_modes_flag(app);
  declare_server_flags(app, options);
  app.add_option("--model", learn.model,
                 is_own ? std::string("Train this model only (default: any that the server asks "
                                      "for)")
                        : fmt::format("Train this model only: {} (default: any that the server "
                                      "asks for)",
                                      builtin_model_names()));
  if (!is_own) {
    declare_data_flags(app, learn);
    declare_shard_flag(app, learn);
  }
  app.add_flag("--evaluate-only", learn.evaluate_only,
               "Evaluate every model version on the data; don't train");
  if (!is_own) declare_trainer_flags(app, options.trainer);
  if (!is_own) declare_site_flags(app, options.site);
  app.add_option("--threads", learn.threads,
                 is_own ? "Threads for encoding; 0 means one per core"
                        : "Threads for training and encoding; 0 means one per core")
      ->check(whole_number_in(0, 4096))
      ->capture_default_str();
  if (!is_own) declare_hogwild_flag(app, learn);
  app.add_flag("--log-json", options.log_json, "Log as JSON objects");
  app.add_flag("--verbose", options.verbose, "Log more");
  declare_own_flags(app, program);
}

/// Adds all flags and sub-commands. Returns what parses: it throws for a mistake, and returns the
/// exit code after a sub-command that needs no more, else -1. All arguments must outlive it.
std::function<int(int, const char* const*)> declare_all(CLI::App& app, const ClientProgram& program,
                                                        ClientOptions& options) {
  const bool is_own = static_cast<bool>(program.make_trainer);
  options.program = program.name;
  app.set_version_flag("--version", fmt::format("{} {}, protocol {}", program.name,
                                                software_version_and_commit, protocol_version));
  add_config_flag(app, "A TOML file with any of these flags");
  app.fallthrough();
  // The last of repeated flags counts, so that a user can append flags to a script's.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  declare_flags(app, program, options, is_own);
  auto* join = app.add_subcommand("join", "Joins with a token, then exits");
  join->add_option(
      "TOKEN", options.join,
      "The token that 'fl-server enroll --name NAME' printed; '-' reads it from standard "
      "input. Or use --join-file");
  auto* initial = app.add_subcommand(
      "initial-weights", "Asks the trainer for initial weights and writes the file for the server");
  initial->add_option("FILE", options.initial_weights, "The safetensors file to write")->required();
  initial->add_option("--seed", options.initial_seed, "The weights are a function of this number")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  auto* doctor = app.add_subcommand("doctor",
                                    "Looks at the way to the server, certificate, clock, disk, "
                                    "data, trainer and GPU, and says for "
                                    "each what to do; with the flags that the client gets. The "
                                    "exit code is 1 if something fails");
  doctor->add_flag("--json", options.as_json, "Print JSON");
  const auto run_site_command = site::declare_site_commands(app, std::cout);
  const auto run_predict_command = is_own ? [] { return -1; } : declare_predict_command(app);
  const auto run_site_key_command = declare_site_key_command(app);
  const auto run_members_command = declare_members_command(app, options.state);
  app.require_subcommand(0, 1);
  return [&app, &options, join, initial, doctor, run_site_command, run_predict_command,
          run_site_key_command, run_members_command, is_own](int argc, const char* const* argv) {
    app.parse(argc, argv);
    for (const auto* const run :
         {&run_site_command, &run_predict_command, &run_site_key_command, &run_members_command})
      if (const int code = (*run)(); code >= 0) return code;
    check_together(app, *join, *initial, options, is_own);
    options.only_join = static_cast<bool>(*join);
    options.doctor = static_cast<bool>(*doctor);
    options.flags = given_flags(app);
    return -1;
  };
}

/// The flags of a program's own trainer stay as they are: the trainer reads them on its thread.
Result<ClientOptions> parse_again(int argc, const char* const* argv, ClientProgram program) {
  std::vector<std::string> unused(program.flags.size());
  for (std::size_t i = 0; i < unused.size(); ++i) program.flags[i].value = &unused[i];
  CLI::App app;
  ClientOptions options;
  const auto parse = declare_all(app, program, options);
  try {
    if (parse(argc, argv) >= 0) return Error(Errc::internal, "a sub-command was run again");
  } catch (const CLI::ParseError& error) {
    return Error(Errc::invalid_input, error_text(app, error));
  }
  return options;
}

}  // namespace

void declare_reading_flags(CLI::App& app, LearnOptions& learn, const std::string& what) {
  app.add_option("--data", learn.data,
                 fmt::format("{}, one of: {} (docs/guide/data.md)", what, reader_usages()));
  app.add_option(
         "--data-memory",
         [&learn](const CLI::results_t& given) {
           if (const auto wrong = parse_memory(given.front(), learn.data_memory_bytes);
               !wrong.empty())
             throw CLI::ValidationError("--data-memory", wrong);
           return true;
         },
         "Memory for the data; what does not fit goes to a temporary file in TMPDIR, or else in "
         "/var/tmp (default: a quarter of the memory that this process may use)")
      ->type_name("SIZE");
  app.add_flag(
      "--skip-bad-files", learn.skip_bad_files,
      "Leave out images and documents that can't be read, and say in the log which and how "
      "many; without it they are an error");
}

void declare_device_flag(CLI::App& app, LearnOptions& learn, const std::string& what) {
  app.add_option("--device", learn.device,
                 what + ": cpu, cuda, cuda:N (the GPU of that number) or auto")
      ->check(CLI::Validator(check_device, "{cpu,cuda,auto}"))
      ->capture_default_str();
}

void declare_data_flags(CLI::App& app, LearnOptions& learn) {
  declare_reading_flags(app, learn, "The local data");
  app.add_option("--partition", learn.partition,
                 fmt::format("How to divide the data into shards: {}",
                             alternatives(partition_rows(), &PartitionRow::usage)))
      ->check([](const std::string& text) -> std::string {
        const auto spec = parse_partition(text);
        return spec ? "" : spec.error().message();
      })
      ->capture_default_str();
  app.add_option("--partition-seed", learn.partition_seed,
                 "Seed of the partition; must be the same for all clients that share it")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  app.add_option("--holdout", learn.holdout,
                 "Fraction of the shard that is held out for evaluation")
      ->check(real_number_in(0, 0.9))
      ->capture_default_str();
  app.add_flag("--keep-moments", learn.keep_moments,
               "Let the optimizer's moments (momentum, Adam) go on from round to round, as DiLoCo "
               "needs it; they are kept on the disk");
  declare_device_flag(app, learn, "Where to train");
  app.add_option(
         "--precision", learn.precision,
         "Number format of the forward and backward pass: fp32, bf16, fp16 with a loss scale, or "
         "adaptive, which is bf16 or fp32 as the gradients allow; layers may have their own, as in "
         "bf16,*norm*=fp32 (slower on hardware without that format); weights and updates are "
         "always fp32")
      ->type_name("FORMAT")
      ->check([](const std::string& text) {
        const auto plan = parse_precision(text);
        return plan ? std::string() : plan.error().message();
      })
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--recompute", [&learn](const std::string& what) { learn.recomputes = what == "full"; },
         "Which activations a backward pass computes again, in place of keeping them: none, or "
         "full, all but those at the borders of layers and blocks (less memory, a third more "
         "computing, the same bits)")
      ->check(one_of({"none", "full"}))
      ->default_str("none");
  app.add_option_function<std::string>(
         "--offload",
         [&learn](const std::string& what) { learn.offloads_optimizer = what == "optimizer"; },
         "What a GPU leaves to the host: nothing (none), or the optimizer's steps with all that "
         "only they need (optimizer), which takes 8 to 16 bytes a parameter off the GPU and makes "
         "each step slower")
      ->check(one_of({"none", "optimizer"}))
      ->default_str("none");
}

void declare_trainer_flags(CLI::App& app, TrainerCommand& trainer) {
  auto* const command =
      app.add_option("--trainer", trainer.command,
                     "Train with this command, which runs as long as this program: your own "
                     "model and data, in any language (docs/design/trainer-protocol.md)")
          ->type_name("COMMAND")
          ->check(not_empty());
  auto* const once = app.add_option("--trainer-once", trainer.once,
                                    "Train with this command, which is run anew for each request "
                                    "and answers by files")
                         ->type_name("COMMAND")
                         ->check(not_empty())
                         ->excludes(command);
  app.add_option("--trainer-socket", trainer.socket,
                 "Train with a program that somebody else starts and that connects to this "
                 "socket, which must not exist yet")
      ->type_name("PATH")
      ->check(not_empty())
      ->excludes(command)
      ->excludes(once);
  app.add_option(
         "--trainer-env",
         [&trainer](const CLI::results_t& given) {
           for (const auto& text : given) {
             if (const auto wrong = parse_variable(text, trainer); !wrong.empty())
               throw CLI::ValidationError("--trainer-env", wrong);
           }
           return true;
         },
         "Add this variable to the trainer's environment; may be repeated")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--trainer-timeout", trainer.silence_s,
                 "End a trainer that shows no life for so many seconds during a request")
      ->check(real_number_in(1, 1e7))
      ->capture_default_str();
  app.add_option("--trainer-retries", trainer.retries,
                 "End when the trainer has failed so many times in a row")
      ->check(whole_number_in(1, 1'000'000))
      ->capture_default_str();
}

void refuse_beside_trainer(const CLI::App& app, std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    if (app.count(flag) > 0)
      throw CLI::ValidationError(flag,
                                 "is for built-in models; your trainer has data and devices "
                                 "of its own");
  }
}

int parse_options(int argc, char** argv, const ClientProgram& program, ClientOptions& options) {
  CLI::App app{program.make_trainer ? program.about : std::string(about), program.name};
  app.footer(documents_footer());
  const auto parse = declare_all(app, program, options);
  try {
    if (const int code = parse(argc, argv); code >= 0) return code;
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  }
  options.read_again = [argc, argv, program] { return parse_again(argc, argv, program); };
  return -1;
}

}  // namespace fl::client
