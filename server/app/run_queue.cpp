// SPDX-License-Identifier: Apache-2.0
#include "server/app/run_queue.hpp"

#include "server/run/masked_settings.hpp"
#include "server/run/settings_table.hpp"
#include "server/versions/checkpoints.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/crypto.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <span>
#include <utility>

namespace fl::server {

namespace {

/// The error when the server's flags ask for something that the run in the state does not allow.
Error other_run(const RunOptions& options, std::string_view what) {
  return {Errc::conflict,
          fmt::format("the run in {} {}; 'fl-server queue' adds another run behind it, --new-run "
                      "gives it up and begins another",
                      options.state, what)};
}

Result<RunSettings> settings_of(const RunRecord& run) {
  FL_TRY(RunSettings settings, settings_from_json(run.config_json));
  settings.rounds = run.rounds_total;
  return settings;
}

/// True if the run can still take another value of this setting.
bool is_changeable(const RunSettingRow& row, const RunRecord& run) {
  switch (row.changeable) {
    case Changeable::always: return true;
    case Changeable::before_first_model: return run.state == RunState::waiting;
    case Changeable::not_at_all: break;
  }
  return false;
}

/// The stored settings, with the values of the flags that were given now.
Result<RunSettings> merge_settings(const RunRecord& run, const RunOptions& options) {
  FL_TRY(RunSettings merged, settings_of(run));
  const RunSettingTable table = run_setting_table();
  for (const auto& row : table.rows()) {
    if (!options.given.contains(std::string(row.flag)) || is_changeable(row, run)) continue;
    const auto stored = row.value_of(merged);
    const auto wanted = row.value_of(options.settings);
    if (wanted != stored) {
      return other_run(options, fmt::format("has --{} {}, which can't become {} any more", row.flag,
                                            json_text(stored), json_text(wanted)));
    }
  }
  table.copy(options.given, options.settings, merged);
  return merged;
}

/// Writes changes that were made to a run into the log and into its history.
void note_changes(Events& events, const RunRecord& run, const std::set<std::string>& given,
                  const RunSettings& before, const RunSettings& now) {
  const RunSettingTable table = run_setting_table();
  for (const std::string& flag : given) {
    const RunSettingRow& row = *table.find(flag);
    const auto old_value = row.value_of(before);
    const auto new_value = row.value_of(now);
    if (old_value == new_value) continue;
    const std::string text = fmt::format("--{} is {} from here on, and was {}", flag,
                                         json_text(new_value), json_text(old_value));
    log_info("{}", text);
    events.note(run.id, EventLevel::info, text);
  }
}

/// Sets what suits a masked run where no flag is `given` for it, and says so in the log.
void fit_to_masks(RunSettings& settings, const std::set<std::string>& given) {
  if (const std::string text = set_masked_defaults(settings, given); !text.empty())
    log_info("{}", text);
}

Result<ChosenRun> go_on(Store& store, RunRecord run, const RunOptions& options) {
  if (run.queued) {
    if (!options.given.empty())
      log_warn("run {} was queued with settings of its own: the flags given now do not change it",
               run.id);
    FL_TRY(RunSettings settings, settings_of(run));
    return ChosenRun{std::move(run), std::move(settings)};
  }
  FL_TRY(RunSettings settings, merge_settings(run, options));
  std::set<std::string> changed = options.given;
  if (changed.contains("secure-aggregation")) {
    fit_to_masks(settings, options.given);
    for (const std::string_view flag : masked_default_flags) changed.emplace(flag);
  }
  // A run that has no initial model yet may get another one.
  if (options.given.contains("initial-weights") && run.state == RunState::waiting)
    FL_CHECK(take_tensors(posix_files(), settings));
  FL_CHECK(check_settings(settings));
  FL_TRY(const RunSettings before, settings_of(run));
  const std::string json_before = std::exchange(run.config_json, to_json(settings));
  if (run.config_json != json_before) run.early_end.clear();  // Runs::change() resets it likewise.
  run.rounds_total = settings.rounds;
  FL_CHECK(store.runs().change(run.id, run.rounds_total, run.config_json));
  note_changes(store.events(), run, changed, before, settings);
  if (run.state == RunState::finished) run.state = RunState::running;
  return ChosenRun{std::move(run), std::move(settings)};
}

/// Warns if flags ask for something else than the finished run had: they change nothing.
void warn_of_idle_flags(const RunRecord& run, const RunSettings& settings,
                        const RunOptions& options) {
  const RunSettingTable table = run_setting_table();
  std::string idle;
  for (const std::string& flag : options.given) {
    const RunSettingRow& row = *table.find(flag);
    if (row.value_of(options.settings) == row.value_of(settings)) continue;
    idle += fmt::format("{}--{}", idle.empty() ? "" : ", ", flag);
  }
  if (idle.empty()) return;
  log_warn(
      "run {} is over, and {} given now change nothing: 'fl-server queue' with them begins "
      "another run",
      run.id, idle);
}

/// Checks that the run can begin from its file. A server that finds out later must give the run up.
Result<void> check_initial_weights(const RunSettings& settings) {
  if (settings.initial_weights.empty()) return {};
  FL_TRY(const Layout layout, model_layout(settings));
  FL_TRY(const auto strategy, parse_strategy(settings.strategy));
  FL_CHECK(read_initial_weights(posix_files(), settings.initial_weights, layout, *strategy));
  return {};
}

/// A run has a seed of its own, unless --seed says which: two runs with the same seed begin alike,
/// and the difference of their sums would reveal a single member's update. A double holds each such
/// number exactly, so readers of JSON that know only doubles can hold it.
Result<void> draw_seed(const RunOptions& options, RunSettings& settings) {
  if (options.given.contains("seed")) return {};
  FL_CHECK(fill_random(std::as_writable_bytes(std::span(&settings.seed, 1))));
  settings.seed >>= 64 - std::numeric_limits<double>::digits;
  return {};
}

/// Checks everything, before another run is stopped for this one.
Result<RunRecord> make_record(const RunSettings& settings) {
  FL_CHECK(check_settings(settings));
  FL_CHECK(check_initial_weights(settings));
  std::array<std::byte, 8> key{};
  FL_CHECK(fill_random(key));
  RunRecord run;
  run.key = to_hex(key);
  run.model = settings.model;
  run.seed = settings.seed;
  run.rounds_total = settings.rounds;
  run.config_json = to_json(settings);
  run.started_at = Clock::unix_seconds();
  return run;
}

/// The settings of a new run: those of the flags.
Result<RunSettings> new_settings(Runs& runs, const RunOptions& options) {
  RunSettings settings = options.settings;
  if (!options.given.contains("model")) {
    FL_TRY(settings, with_newest_model(runs, std::move(settings)));
  }
  FL_CHECK(take_tensors(posix_files(), settings));
  fit_to_masks(settings, options.given);
  return settings;
}

Result<ChosenRun> begin_run(Runs& runs, const RunOptions& options,
                            std::optional<RunSettings> settings = std::nullopt) {
  if (!settings) {
    FL_TRY(settings, new_settings(runs, options));
  }
  FL_CHECK(draw_seed(options, *settings));
  FL_TRY(const RunRecord record, make_record(*settings));
  FL_TRY(RunRecord made, runs.create(record, Runs::Others::stop));
  return ChosenRun{std::move(made), std::move(*settings)};
}

}  // namespace

Result<ChosenRun> choose_run(Store& store, const ServeOptions& options,
                             const std::optional<RunSettings>& first) {
  FL_TRY(const auto latest, store.runs().latest());
  if (!latest) return begin_run(store.runs(), options, first);
  if (options.new_run) return begin_run(store.runs(), options);
  FL_TRY(const auto open, store.runs().next_open());
  if (open) return go_on(store, *open, options);
  const bool is_longer =
      options.given.contains("rounds") && options.settings.rounds > latest->rounds_total;
  if (is_longer && latest->state == RunState::finished && !latest->queued)
    return go_on(store, *latest, options);
  if (options.stay) {  // No run is open, and so this one is over.
    FL_TRY(RunSettings settings, settings_of(*latest));
    warn_of_idle_flags(*latest, settings, options);
    return ChosenRun{*latest, std::move(settings)};
  }
  if (latest->state == RunState::stopped)
    return Error(Errc::conflict,
                 fmt::format("the run in {} was given up: --new-run begins another, --stay waits "
                             "for the next one in the queue",
                             options.state));
  FL_TRY(const auto rounds, store.summaries().rounds(latest->id));
  const bool is_early = rounds.size() < latest->rounds_total;
  return Error(Errc::conflict,
               fmt::format("the run in {} is finished after {} rounds{}. {}--new-run begins "
                           "another run, --stay waits "
                           "for the next one in the queue",
                           options.state, rounds.size(),
                           is_early ? fmt::format(" of {} ('fl-server history --events' says why)",
                                                  latest->rounds_total)
                                    : "",
                           latest->queued ? "It was queued, so flags can't make it longer: "
                                          : "A larger --rounds goes on with it, "));
}

Result<std::optional<ChosenRun>> next_run(Runs& runs) {
  FL_TRY(auto open, runs.next_open());
  if (!open) return std::optional<ChosenRun>();
  FL_TRY(RunSettings settings, settings_of(*open));
  return std::optional(ChosenRun{std::move(*open), std::move(settings)});
}

Result<RunSettings> with_newest_model(Runs& runs, RunSettings settings) {
  FL_TRY(const auto before, runs.newest_begun());
  if (!before) return settings;
  settings.model = before->model;
  if (!settings.model.starts_with(custom_prefix) || !settings.initial_weights.empty())
    return settings;
  // The tensors of such a model are those of its file.
  FL_TRY(const RunSettings known, settings_of(*before));
  settings.initial_weights = known.initial_weights;
  return settings;
}

Result<std::string> others_of_newest(Runs& runs, const RunOptions& options) {
  FL_TRY(const auto before, runs.newest_begun());
  if (!before || options.given.contains("model")) return std::string();
  FL_TRY(const RunSettings known, settings_of(*before));
  const RunSettingTable table = run_setting_table();
  std::string others;
  for (const auto& row : table.rows()) {
    const bool is_own = row.flag == "model" || row.flag == "initial-weights" ||
                        row.flag == "seed" || row.flag == "rounds";
    if (row.flag.empty() || is_own || options.given.contains(std::string(row.flag))) continue;
    const auto value = row.value_of(known);
    const auto here = row.value_of(options.settings);
    if (value == here) continue;
    others += fmt::format("{}--{} {} (here {})", others.empty() ? "" : ", ", row.flag,
                          json_text(value), json_text(here));
  }
  return fmt::format("the model is that of run {}, as no --model was given{}{}", before->id,
                     others.empty() ? "" : "; its other settings are not taken over, and it had ",
                     others);
}

Result<RunRecord> queue_run(Runs& runs, const RunOptions& options) {
  FL_TRY(const std::size_t open, runs.open_count());
  if (open >= limits::runs_queued_max)
    return Error(
        Errc::conflict,
        fmt::format("{} runs are not finished, and that is the limit: queue this one later", open));
  FL_TRY(RunSettings settings, new_settings(runs, options));
  FL_CHECK(draw_seed(options, settings));
  FL_TRY(RunRecord record, make_record(settings));
  record.queued = true;
  return runs.create(record);
}

std::filesystem::path checkpoints_of(const std::filesystem::path& state, const RunRecord& run) {
  return run.checkpoints.empty() ? state / "checkpoints" : state / "checkpoints" / run.checkpoints;
}

std::filesystem::path kept_updates_of(const std::filesystem::path& state, const RunRecord& run) {
  return state / "kept-updates" / fmt::format("run-{}", run.id);
}

RunFiles::Paths paths_of(const std::filesystem::path& state, const RunRecord& run) {
  return {checkpoints_of(state, run), state / "spool", state / "references",
          kept_updates_of(state, run)};
}

}  // namespace fl::server
