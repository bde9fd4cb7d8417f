#include "server/app/run_queue.hpp"

#include "server/versions/checkpoints.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/crypto.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace fl {

namespace {

Error other_run(const ServerOptions& options, std::string_view what) {
  return {Errc::conflict,
          fmt::format("the run in {} {}; --new-run begins another", options.state, what)};
}

Result<RunSettings> settings_of(const RunRecord& run) {
  FL_TRY(RunSettings settings, settings_from_json(run.config_json));
  settings.rounds = run.rounds_total;
  return settings;
}

/// By which the settings' JSON has it.
std::string key_of(std::string flag) {
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag == "deadline" ? "deadline_s" : flag;
}

/// The stored settings, with those that were given now in their place.
Result<RunSettings> merge_settings(const RunRecord& run, const ServerOptions& options) {
  if (options.given.contains("model") && options.settings.model != run.model)
    return other_run(options,
                     fmt::format("trains '{}', not '{}'", run.model, options.settings.model));
  if (options.given.contains("seed") && options.settings.seed != run.seed)
    return other_run(options, fmt::format("has seed {}", run.seed));
  FL_TRY(const RunSettings stored, settings_of(run));
  const bool is_other_method =
      options.given.contains("strategy") && options.settings.strategy != stored.strategy;
  if (is_other_method && run.state != RunState::waiting)
    return other_run(options, fmt::format("is trained by '{}'", stored.strategy));
  const bool is_other_mode = options.given.contains("mode") && options.settings.mode != stored.mode;
  if (is_other_mode && run.state != RunState::waiting)
    return other_run(options, fmt::format("is of mode '{}'", stored.mode));
  const bool is_other_begin = options.given.contains("initial-weights") &&
                              options.settings.initial_weights != stored.initial_weights;
  if (is_other_begin && run.state != RunState::waiting)
    return other_run(options, "has its initial model already");
  auto merged = parse_json(to_json(stored));
  const auto now = parse_json(to_json(options.settings));
  for (const std::string& flag : options.given) merged[key_of(flag)] = now.at(key_of(flag));
  return settings_from_json(json_text(merged));
}

Result<ChosenRun> go_on(Store& store, RunRecord run, const ServerOptions& options) {
  if (run.queued) {
    if (!options.given.empty())
      log_warn("run {} was queued with settings of its own: the flags given now don't change it",
               run.id);
    FL_TRY(RunSettings settings, settings_of(run));
    return ChosenRun{std::move(run), std::move(settings)};
  }
  FL_TRY(RunSettings settings, merge_settings(run, options));
  // A run that has no initial model yet may get another one.
  if (options.given.contains("initial-weights") && run.state == RunState::waiting)
    FL_CHECK(take_tensors(posix_files(), settings));
  FL_CHECK(check_settings(settings));
  FL_TRY(const RunSettings before, settings_of(run));
  run.config_json = to_json(settings);
  run.rounds_total = settings.rounds;
  FL_CHECK(store.change_run(run.id, run.rounds_total, run.config_json));
  const auto old = parse_json(to_json(before));
  const auto now = parse_json(run.config_json);
  for (const std::string& flag : options.given) {
    const std::string key = key_of(flag);
    if (old.at(key) == now.at(key)) continue;
    const std::string text = fmt::format("--{} is {} from here on, and was {}", flag,
                                         json_text(now.at(key)), json_text(old.at(key)));
    log_info("{}", text);
    note_event(store, run.id, "info", text);
  }
  if (run.state == RunState::finished) run.state = RunState::running;
  return ChosenRun{std::move(run), std::move(settings)};
}

/// That a run can begin from its file: a server that finds out later has to give the run up.
Result<void> check_initial_weights(const RunSettings& settings) {
  if (settings.initial_weights.empty()) return {};
  FL_TRY(const Layout layout, model_layout(settings));
  FL_TRY(const auto strategy, parse_strategy(settings.strategy));
  FL_CHECK(read_initial_weights(posix_files(), settings.initial_weights, layout, *strategy));
  return {};
}

/// Everything is checked before a run that goes on is stopped for it.
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

/// Of a run that is to be made: what the flags say, of the model that the clients have data for.
Result<RunSettings> new_settings(Store& store, const ServerOptions& options) {
  RunSettings settings = options.settings;
  if (!options.given.contains("model")) {
    FL_TRY(const auto latest, store.latest_run());
    if (latest) settings.model = latest->model;
  }
  FL_CHECK(take_tensors(posix_files(), settings));
  return settings;
}

Result<ChosenRun> begin_run(Store& store, const ServerOptions& options) {
  FL_TRY(RunSettings settings, new_settings(store, options));
  FL_TRY(const RunRecord record, make_record(settings));
  FL_TRY(RunRecord made, store.create_run(record, Store::Others::stop));
  return ChosenRun{std::move(made), std::move(settings)};
}

}  // namespace

Result<ChosenRun> choose_run(Store& store, const ServerOptions& options) {
  if (options.new_run) return begin_run(store, options);
  FL_TRY(const auto open, store.open_run());
  if (open) return go_on(store, *open, options);
  FL_TRY(const auto latest, store.latest_run());
  if (!latest) return begin_run(store, options);
  const bool is_longer =
      options.given.contains("rounds") && options.settings.rounds > latest->rounds_total;
  if (is_longer && latest->state == RunState::finished && !latest->queued)
    return go_on(store, *latest, options);
  if (options.stay && latest->state == RunState::finished) {
    FL_TRY(RunSettings settings, settings_of(*latest));
    return ChosenRun{*latest, std::move(settings)};
  }
  if (latest->state == RunState::stopped) return other_run(options, "was given up");
  FL_TRY(const auto rounds, store.summary(latest->id));
  const bool is_early = rounds.size() < latest->rounds_total;
  return Error(
      Errc::conflict,
      fmt::format(
          "the run in {} is finished after {} rounds{}: {}--new-run begins another, --stay "
          "waits for one",
          options.state, rounds.size(),
          is_early ? fmt::format(" of {} (history --events says why)", latest->rounds_total) : "",
          latest->queued ? "it was queued with settings of its own, so "
                         : "--rounds N with a larger N goes on with it, "));
}

Result<std::optional<ChosenRun>> next_run(Store& store) {
  FL_TRY(auto open, store.open_run());
  if (!open) return std::optional<ChosenRun>();
  FL_TRY(RunSettings settings, settings_of(*open));
  return std::optional(ChosenRun{std::move(*open), std::move(settings)});
}

Result<RunRecord> queue_run(Store& store, const ServerOptions& options) {
  FL_TRY(const std::size_t open, store.open_runs());
  if (open >= limits::runs_queued_max)
    return Error(Errc::conflict,
                 fmt::format("{} runs are not over yet: queue this one later", open));
  FL_TRY(const RunSettings settings, new_settings(store, options));
  FL_TRY(RunRecord record, make_record(settings));
  record.queued = true;
  return store.create_run(record);
}

std::filesystem::path checkpoints_of(const std::filesystem::path& state, const RunRecord& run) {
  return run.checkpoints.empty() ? state / "checkpoints" : state / "checkpoints" / run.checkpoints;
}

}  // namespace fl
