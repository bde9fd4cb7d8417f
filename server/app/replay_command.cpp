// SPDX-License-Identifier: Apache-2.0
#include "server/app/replay_command.hpp"

#include "server/app/asked_run.hpp"
#include "server/app/open_store.hpp"
#include "server/app/run_queue.hpp"
#include "server/round/kept_round.hpp"
#include "server/round/replay.hpp"
#include "shared/base/io/scratch_folder.hpp"
#include "shared/base/json.hpp"
#include "shared/base/version.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

struct ReplayOptions : SharedOptions {
  std::string run;
  std::optional<Round> round;  // None: each round whose updates are kept.
  std::string scratch;         // A folder; "": the system's for temporary files.
  bool as_json = false;
};

/// A server that closes a round writes its description before the round is recorded.
Result<std::vector<Round>> asked_rounds(Summaries& summaries, const ReplayOptions& options,
                                        const RunRecord& run) {
  if (options.round) return std::vector<Round>{*options.round};
  FL_TRY(auto rounds, described_rounds(posix_files(), kept_updates_of(options.state, run)));
  FL_TRY(const auto recorded, summaries.rounds(run.id));
  const Round last = recorded.empty() ? 0 : recorded.back().round;
  std::erase_if(rounds, [last](Round round) { return round > last; });
  if (!rounds.empty()) return rounds;
  return Error(
      Errc::not_found,
      fmt::format("no updates of run {} are kept: a run with --keep-updates keeps them", run.id));
}

/// The number as text, also if it is missing.
std::string shown(const std::optional<double>& number, int decimals) {
  return number ? fmt::format("{:.{}f}", *number, decimals) : "-";
}

void print_updates(const std::vector<UpdateDirection>& updates) {
  std::size_t width = 6;
  for (const UpdateDirection& update : updates) width = std::max(width, update.client.size());
  fmt::print("  {:<{}}   cosine with the mean   norm / median\n", "client", width);
  for (const UpdateDirection& update : updates) {
    fmt::print("  {:<{}}   {:>20}   {:>13}\n", update.client, width, shown(update.cosine, 4),
               shown(update.relative_norm, 3));
  }
}

nlohmann::json json_of(const std::optional<double>& number) {
  return number ? nlohmann::json(*number) : nlohmann::json();
}

nlohmann::json json_of(const ReplayedRound& replayed) {
  nlohmann::json updates = nlohmann::json::array();
  for (const UpdateDirection& update : replayed.updates) {
    updates.push_back({{"client", update.client},
                       {"task", number_of(update.task)},
                       {"norm", update.norm},
                       {"relative_norm", json_of(update.relative_norm)},
                       {"cosine", json_of(update.cosine)}});
  }
  return {{"round", replayed.round},           {"recorded", replayed.recorded.hex()},
          {"made_again", replayed.made.hex()}, {"is_same", replayed.is_same()},
          {"difference", replayed.difference}, {"closed_by", replayed.closed_by},
          {"updates", std::move(updates)}};
}

void print(const ReplayedRound& replayed) {
  fmt::print("round {}: {} update{}, recorded {}, made again {}: {}\n", replayed.round,
             replayed.updates.size(), replayed.updates.size() == 1 ? "" : "s",
             replayed.recorded.hex(), replayed.made.hex(),
             replayed.is_same() ? "the same" : "NOT THE SAME");
  print_updates(replayed.updates);
  if (replayed.is_same()) return;
  fmt::print("  {}\n", replayed.difference);
  if (replayed.closed_by != software_version_and_commit)
    fmt::print(
        "  the round was closed by fl-server {}, and this is {}: replay it with the former\n",
        replayed.closed_by, software_version_and_commit);
}

void declare_replay(CLI::App& command, ReplayOptions& options) {
  add_run_option(command, "RUN", options.run, "The run")->required();
  command
      .add_option("--round", options.round,
                  "The round to make again. By default each round whose updates are kept")
      ->check(whole_number(1, std::numeric_limits<Round>::max()));
  command
      .add_option("--scratch", options.scratch,
                  "A folder with room for two models and the method's state, for a moment. By "
                  "default the system's for temporary files")
      ->check(CLI::ExistingDirectory);
  command.add_flag("--json", options.as_json, "Print JSON");
}

Result<int> replay_rounds(const ReplayOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  FL_TRY(const RunRecord run, asked_run(store->runs(), options.run));
  FL_TRY(const auto rounds, asked_rounds(store->summaries(), options, run));
  int code = 0;
  nlohmann::json all = nlohmann::json::array();
  for (const Round round : rounds) {
    FL_TRY(const ScratchFolder scratch, ScratchFolder::make("fl-replay", options.scratch));
    const ReplaySource from{posix_files(),
                            *store,
                            run,
                            checkpoints_of(options.state, run),
                            kept_updates_of(options.state, run),
                            scratch.path()};
    const auto replayed = replay_round(from, round);
    if (!replayed) return replayed.error().at(fmt::format("round {} of run {}", round, run.id));
    if (options.as_json) {
      all.push_back(json_of(*replayed));
    } else {
      print(*replayed);
    }
    if (!replayed->is_same()) code = replay_differs;
  }
  if (options.as_json) fmt::print("{}\n", json_text(all, 2));
  return code;
}

}  // namespace

Command replay_command() {
  return make_command<ReplayOptions>(
      "replay",
      "Makes rounds whose updates were kept (--keep-updates) again, and compares the models "
      "with the recorded ones, bit for bit. The exit code is 4 if one differs",
      {.declare = declare_replay, .judge = replay_rounds});
}

}  // namespace fl::server
