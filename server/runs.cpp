#include "server/runs.hpp"

#include "shared/base/bytes.hpp"
#include "shared/base/clock.hpp"
#include "shared/identity/crypto.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace fl {

namespace {

Error other_run(const ServerOptions& options, std::string_view what) {
  return {Errc::conflict,
          fmt::format("the run in {} {}; --new-run begins another", options.state, what)};
}

/// The stored settings, with those that were given now in their place.
Result<RunSettings> merge_settings(const RunRecord& run, const ServerOptions& options) {
  FL_TRY(RunSettings stored, settings_from_json(run.config_json));
  stored.rounds = run.rounds_total;
  if (options.given.contains("model") && options.settings.model != run.model)
    return other_run(options,
                     fmt::format("trains '{}', not '{}'", run.model, options.settings.model));
  if (options.given.contains("seed") && options.settings.seed != run.seed)
    return other_run(options, fmt::format("has seed {}", run.seed));
  auto merged = nlohmann::json::parse(to_json(stored));
  const auto now = nlohmann::json::parse(to_json(options.settings));
  for (std::string flag : options.given) {
    std::replace(flag.begin(), flag.end(), '-', '_');
    if (flag == "deadline") flag = "deadline_s";
    merged[flag] = now.at(flag);
  }
  return settings_from_json(merged.dump());
}

Result<ChosenRun> go_on(Store& store, RunRecord run, const ServerOptions& options) {
  FL_TRY(const RunSettings settings, merge_settings(run, options));
  if (settings.rounds != run.rounds_total) {
    FL_CHECK(store.set_rounds_total(run.id, settings.rounds));
    run.rounds_total = settings.rounds;
  }
  return ChosenRun{std::move(run), settings};
}

}  // namespace

Result<ChosenRun> choose_run(Store& store, const ServerOptions& options) {
  if (options.new_run) {
    FL_TRY(auto open, store.open_run());
    while (open) {
      FL_CHECK(store.set_run_state(open->id, RunState::stopped));
      FL_TRY(open, store.open_run());
    }
  } else {
    FL_TRY(const auto open, store.open_run());
    if (open) return go_on(store, *open, options);
    FL_TRY(const auto latest, store.latest_run());
    const bool is_longer = latest && latest->state == RunState::finished &&
                           options.given.contains("rounds") &&
                           options.settings.rounds > latest->rounds_total;
    if (is_longer) return go_on(store, *latest, options);
    if (latest) {
      return Error(Errc::conflict,
                   fmt::format("the run in {} is finished after {} rounds: --rounds N with a "
                               "larger N goes on with it, --new-run begins another",
                               options.state, latest->rounds_total));
    }
  }
  FL_TRY(RunRecord made, queue_run(store, options.settings));
  return ChosenRun{std::move(made), options.settings};
}

Result<std::optional<ChosenRun>> next_run(Store& store) {
  FL_TRY(auto open, store.open_run());
  if (!open) return std::optional<ChosenRun>();
  FL_TRY(RunSettings settings, settings_from_json(open->config_json));
  settings.rounds = open->rounds_total;
  return std::optional(ChosenRun{std::move(*open), std::move(settings)});
}

Result<RunRecord> queue_run(Store& store, const RunSettings& settings) {
  std::array<std::byte, 8> key{};
  FL_CHECK(fill_random(key));
  RunRecord run;
  run.key = to_hex(key);
  run.model = settings.model;
  run.seed = settings.seed;
  run.rounds_total = settings.rounds;
  run.config_json = to_json(settings);
  run.started_at = Clock::unix_seconds();
  return store.create_run(run);
}

std::filesystem::path checkpoints_of(const std::filesystem::path& state, RunId run) {
  const auto folder = state / "checkpoints";
  return run == 1 ? folder : folder / fmt::format("run-{}", run);
}

}  // namespace fl
