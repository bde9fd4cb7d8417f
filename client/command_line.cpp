#include "client/command_line.hpp"

#include "client/learn/data/partition.hpp"
#include "shared/base/flags.hpp"
#include "shared/base/version.hpp"
#include "shared/params/model_table.hpp"
#include "shared/wire/message.hpp"

#include <fmt/format.h>

#include <charconv>

namespace fl {

namespace {

/// "3/10" into shard 2 of 10.
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
  return fmt::format("'{}' is no shard: write K/N, as in 3/10, with K from 1 to N", text);
}

}  // namespace

void declare_data_flags(CLI::App& app, LearnOptions& learn) {
  app.add_option("--data", learn.data,
                 "fashion-mnist, idx:DIR, either with :test for the test set");
  app.add_option("--partition", learn.partition,
                 "How the data is cut into shards: iid, dirichlet:ALPHA, labels:K, file:PARTS.json")
      ->check([](const std::string& text) -> std::string {
        const auto spec = parse_partition(text);
        return spec ? "" : spec.error().message();
      })
      ->capture_default_str();
  app.add_option("--partition-seed", learn.partition_seed,
                 "Seed of the partition, the same for all its clients")
      ->capture_default_str();
  app.add_option("--holdout", learn.holdout, "Part of the shard kept for evaluation")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  app.add_option("--device", learn.device, "cpu, cuda, or auto")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
  app.add_option(
         "--precision", learn.precision,
         "Of the training's passes: fp32, bf16, or fp16 with a loss scale, for hardware that "
         "has it (others are slower); weights, steps and updates are fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
}

int parse_options(int argc, char** argv, ClientOptions& options) {
  CLI::App app{
      "Trains on this machine's data in a federation, and sends updates, never data.\n"
      "  fl-client --join TOKEN --data fashion-mnist        joins and trains\n"
      "  fl-client --data fashion-mnist --shard 3/10        trains, once joined",
      "fl-client"};
  app.set_version_flag("--version", fmt::format("fl-client {}, protocol {}",
                                                software_version_and_commit, protocol_version));
  add_config_flag(app, "A TOML file with any of these flags");
  app.fallthrough();
  // Given twice, the last one counts: so a script's flags can be overridden behind them.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  auto& learn = options.learn;
  app.add_option("--state", options.state,
                 "Folder for this client's key, certificate and unsent updates")
      ->check(not_empty())
      ->capture_default_str();
  app.add_option("--join", options.join, "Join with this token first, unless done before");
  app.add_option("--name", options.name, "The name to join by; by default the token's");
  app.add_option("--model", learn.model,
                 fmt::format("Refuse to train any other: {}; by default the server's choice",
                             builtin_model_names()));
  declare_data_flags(app, learn);
  app.add_option(
         "--shard",
         [&learn](const CLI::results_t& given) {
           if (const auto wrong = parse_shard(given.front(), learn); !wrong.empty())
             throw CLI::ValidationError("--shard", wrong);
           return true;
         },
         "K/N: part K of N of the data; by default all")
      ->type_name("K/N");
  app.add_flag("--evaluate-only", learn.evaluate_only,
               "Evaluate every model version on the data; train none");
  app.add_option("--threads", learn.threads, "Threads that train and code; 0: one for each core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option(
         "--hogwild", learn.hogwild,
         "Threads that take steps on the same weights without locks, on a CPU, which divide "
         "--threads among them; with more than 1 no two trainings have the same result")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_flag("--stay", options.stay, "When a run is over, wait for the next");
  app.add_flag("--log-json", options.log_json, "Log JSON objects");
  app.add_flag("--verbose", options.verbose, "Log more");
  auto* join = app.add_subcommand("join", "Joins with a token, and ends");
  join->add_option("TOKEN", options.join, "From 'fl-server enroll --name NAME'")->required();
  app.require_subcommand(0, 1);

  try {
    app.parse(argc, argv);
    if (app.count("--partition") > 0 && app.count("--shard") == 0 && !learn.evaluate_only)
      throw CLI::ValidationError("--partition",
                                 "it cuts the data into shards: say which is this client's by "
                                 "--shard K/N");
  } catch (const CLI::ParseError& error) {
    return exit_code(app, error);
  }
  options.only_join = static_cast<bool>(*join);
  return -1;
}

}  // namespace fl
