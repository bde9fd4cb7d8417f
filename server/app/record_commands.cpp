// SPDX-License-Identifier: Apache-2.0
#include "server/app/record_commands.hpp"

#include "server/app/asked_run.hpp"
#include "server/app/backup.hpp"
#include "server/app/compare_runs.hpp"
#include "server/app/open_store.hpp"
#include "server/app/prune.hpp"
#include "server/app/run_queue.hpp"
#include "server/history/cells.hpp"
#include "server/run/best_of_run.hpp"
#include "server/versions/export_model.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/flags/flags.hpp"
#include "shared/identity/authority.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

namespace {

struct CompareOptions : SharedOptions {
  std::string run;
  std::string other_run;
  std::optional<double> reach;
  bool as_json = false;
};

struct ExportOptions : SharedOptions {
  std::string file;
  std::optional<Round> round;  // None: the newest.
  bool best = false;           // The best by the main metric instead.
  std::string run;             // "": the one under way, or the newest.
  std::string format;          // "": what the file's name ends with.
};

struct BackupOptions : SharedOptions {
  std::string folder;
};

struct PruneOptions : SharedOptions {
  std::optional<std::uint64_t> keep_runs;
  std::optional<double> older_than_days;
  bool dry_run = false;
};

void declare_compare(CLI::App& command, CompareOptions& options) {
  add_run_option(command, "RUN", options.run, "A run")->required();
  add_run_option(command, "OTHER", options.other_run, "Another run")->required();
  command
      .add_option("--reach", options.reach,
                  "The value of the main metric for which rounds, time and bytes are counted. "
                  "By default the target of a run, or the best that both have reached")
      ->check(real_number());
  command.add_flag("--json", options.as_json, "Print JSON");
}

Result<void> print_comparison(const CompareOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  FL_TRY(const RunRecord run, asked_run(store->runs(), options.run));
  FL_TRY(const RunRecord other, asked_run(store->runs(), options.other_run));
  FL_TRY(const auto comparison, compare_runs(*store, run, other, options.reach));
  fmt::print("{}", options.as_json ? comparison_json(comparison) : comparison_table(comparison));
  return {};
}

Result<ModelFormat> model_format(const ExportOptions& options) {
  const std::string ending = std::filesystem::path(options.file).extension().string();
  const std::string name = !options.format.empty() ? options.format
                           : ending.empty()        ? ""
                                                   : ending.substr(1);
  if (name == "safetensors") return ModelFormat::safetensors;
  if (name == "npz") return ModelFormat::npz;
  return Error(
      Errc::invalid_input,
      fmt::format("{} does not end with .safetensors or .npz: give --format", options.file));
}

/// The rounds after which the models are, in words: "2, 7 to 9".
std::string rounds_text(const std::vector<CheckpointRecord>& kept) {
  std::string text;
  for (std::size_t first = 0, next = 1; first < kept.size(); first = next++) {
    while (next < kept.size() && kept[next].version == kept[next - 1].version + 1) ++next;
    const Version last = kept[next - 1].version;
    if (!text.empty()) text += ", ";
    text += last == kept[first].version ? fmt::format("{}", last)
                                        : fmt::format("{} to {}", kept[first].version, last);
  }
  return text;
}

/// The kept version that the options ask for.
Result<CheckpointRecord> kept_version(Rounds& rounds, const RunRecord& run,
                                      std::optional<Version> asked) {
  FL_TRY(const auto kept, rounds.checkpoints(run.id));
  if (kept.empty())
    return Error(Errc::not_found, fmt::format("run {} has no model on the disk", run.id));
  if (!asked) return kept.back();
  const auto found = std::ranges::find(kept, *asked, &CheckpointRecord::version);
  if (found != kept.end()) return *found;
  return Error(Errc::not_found,
               fmt::format("the model after round {} of run {} is not on the disk; there are those "
                           "after rounds {} (--keep-checkpoints of a run says how many are kept)",
                           *asked, run.id, rounds_text(kept)));
}

/// The best version, which must be kept.
Result<BestVersion> kept_best(Store& store, const RunRecord& run) {
  FL_TRY(const auto best, best_of_run(store, run, Measurements::Of::all));
  if (!best) {
    FL_TRY(const std::string metric, store.measurements().main_metric(run.id));
    return Error(Errc::not_found,
                 fmt::format("nobody has measured {} of a version of run {}, so none is the best: "
                             "leave --best out to export the newest; versions are measured by an "
                             "evaluator (fl-client --evaluate-only), or by trainers with held-out "
                             "data (--holdout)",
                             metric, run.id));
  }
  if (best->is_kept) return *best;
  FL_TRY(const auto left, best_of_run(store, run, Measurements::Of::kept));
  return Error(Errc::not_found,
               fmt::format("the best of run {}, {}, is not on the disk any more: {}", run.id,
                           best_text(*best),
                           left ? fmt::format("the best that is left is {}; --round {} exports it",
                                              best_text(*left), left->version)
                                : "leave --best out to export the newest"));
}

void declare_export(CLI::App& command, ExportOptions& options) {
  command.add_option("FILE", options.file, "The file to write")->required()->check(not_empty());
  command
      .add_option("--round", options.round,
                  "The model after this round; 0: the initial one. By default the newest")
      ->check(whole_number(0, std::numeric_limits<Round>::max()));
  command
      .add_flag("--best", options.best,
                "The best model by the run's main metric, as 'fl-server history' marks it")
      ->excludes("--round");
  add_run_option(command, "--run", options.run, "Of this run");
  command
      .add_option("--format", options.format,
                  "safetensors or npz (numpy). By default what FILE ends with")
      ->check(one_of({"safetensors", "npz"}));
}

Result<void> export_checkpoint(const ExportOptions& options) {
  FL_TRY(const ModelFormat format, model_format(options));
  FL_TRY(const auto store, open_store(options.state, true));
  FL_TRY(const RunRecord run, asked_run(store->runs(), options.run));
  std::optional<Version> version = options.round;
  Metadata facts;
  std::string measured;
  if (options.best) {
    FL_TRY(const BestVersion best, kept_best(*store, run));
    version = best.version;
    const MetricFigure& figure = best.figure;
    facts = {{"metric", figure.name}, {"value", fmt::format("{}", figure.value)}};
    measured = fmt::format(" ({} {})", printable(figure.name),
                           figure_text(figure.name, figure.value, figure.is_exact));
  }
  FL_TRY(const CheckpointRecord record, kept_version(store->rounds(), run, version));
  FL_TRY(const ExportedModel model, export_model(posix_files(), checkpoints_of(options.state, run),
                                                 record, format, options.file, facts));
  fmt::print("{}: the model of run {} after round {}{}, {} tensors with {} values, digest {}\n",
             options.file, run.id, record.version, measured, model.tensors, model.elements,
             model.digest.hex());
  return {};
}

Act export_act(const ExportOptions& options) {
  return {.text = fmt::format(
              "exports a model ({}, {}) to {}",
              options.run.empty() ? "of the run at hand" : fmt::format("of run {}", options.run),
              options.round  ? fmt::format("after round {}", *options.round)
              : options.best ? "the best"
                             : "the newest",
              options.file),
          .only_reads = true};
}

void declare_backup(CLI::App& command, BackupOptions& options) {
  command.add_option("FOLDER", options.folder, "The folder to make; it must not exist")
      ->required()
      ->check(not_empty());
}

Result<void> make_backup(const BackupOptions& options) {
  FL_TRY(const auto store, open_store(options.state, true));
  FL_TRY(const BackupReport report, back_up(posix_files(), *store, options.state, options.folder));
  for (const std::string& why : report.left_out) fmt::print(stderr, "not in the backup: {}\n", why);
  fmt::print("{}: {} files, {} with {} models. To go on from it: fl-server --state {}\n",
             options.folder, report.files, human_bytes(report.bytes), report.models,
             options.folder);
  return {};
}

Act backup_act(const BackupOptions& options) {
  return {.text = "makes a backup in " + options.folder, .only_reads = true};
}

void declare_prune(CLI::App& command, PruneOptions& options) {
  command
      .add_option("--keep-runs", options.keep_runs, "Keep so many of the newest runs, at least 1")
      ->check(whole_number(1, std::numeric_limits<std::int64_t>::max()));
  command
      .add_option("--older-than", options.older_than_days,
                  "Remove only runs that ended so many days ago")
      ->check(real_number_in(0, 1e9));
  command.add_flag("--dry-run", options.dry_run, "Say what would be removed, and remove nothing");
}

Result<void> prune_history(const PruneOptions& options) {
  if (!options.keep_runs && !options.older_than_days) {
    return Error(Errc::invalid_input,
                 "say which runs may go: --keep-runs N, --older-than DAYS, or both");
  }
  PruneRule rule;
  rule.keep_runs = options.keep_runs.value_or(1);
  if (options.older_than_days) rule.older_than_s = *options.older_than_days * day_s;
  FL_TRY(const auto store, open_store(options.state, options.dry_run));
  FL_TRY(const auto runs,
         runs_to_prune(posix_files(), *store, options.state, rule, Clock::unix_seconds()));
  for (const PrunedRun& pruned : runs) {
    fmt::print("run {}, which ended {} UTC: {} tasks, {} files, {}\n", pruned.run.id,
               utc_time(pruned.run.ended_at), pruned.run.tasks, pruned.files,
               human_bytes(pruned.bytes));
  }
  if (runs.empty()) fmt::print("no run is to be removed\n");
  if (options.dry_run || runs.empty()) return {};
  FL_CHECK(prune_runs(posix_files(), *store, options.state, runs));
  fmt::print("removed\n");
  const auto lock = StateLock::take(options.state);
  if (!lock) {
    fmt::print(
        "the server is running: the history uses the space again, and becomes smaller when "
        "this command removes something while the server is stopped\n");
    return {};
  }
  return store->archive().give_back_space();
}

Act prune_act(const PruneOptions& options) {
  if (options.dry_run || (!options.keep_runs && !options.older_than_days)) return {};
  std::string which;
  if (options.keep_runs) which += fmt::format(" but the newest {}", *options.keep_runs);
  if (options.older_than_days)
    which += fmt::format(" that ended {:g} days ago or more", *options.older_than_days);
  return {"removes the runs that are over," + which};
}

}  // namespace

Command compare_command() {
  return make_command<CompareOptions>(
      "compare",
      "Prints two runs side by side: the settings in which they differ, what they cost and "
      "reached",
      {.declare = declare_compare, .run = print_comparison});
}

Command export_command() {
  return make_command<ExportOptions>(
      "export", "Writes a version of the model into a file for other programs",
      {.declare = declare_export, .run = export_checkpoint, .act = export_act});
}

Command backup_command() {
  return make_command<BackupOptions>(
      "backup",
      "Copies the state of the server, which may be running, into a folder from which a "
      "server can go on",
      {.declare = declare_backup, .run = make_backup, .act = backup_act});
}

Command prune_command() {
  return make_command<PruneOptions>(
      "prune", "Removes runs that are over, with their models. The audit stays",
      {.declare = declare_prune, .run = prune_history, .act = prune_act});
}

}  // namespace fl::server
