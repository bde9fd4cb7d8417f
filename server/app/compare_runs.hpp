// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: the settings in which they differ, what they cost, what they reached, and
// what it took each of them to reach the same value. Blocking (the store).
#pragma once

#include "server/history/store.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

/// The point of a run at which it first measured a value.
struct Reached {
  Round round = 0;
  double seconds = 0;  // The time of the rounds up to there.
  std::uint64_t bytes = 0;
};

struct RunFigures {
  RunRecord run;
  Round rounds = 0;  // Closed rounds.
  double seconds = 0;
  std::uint64_t bytes_up = 0;
  std::uint64_t bytes_down = 0;
  std::uint64_t updates = 0;  // Accepted updates.
  std::string metric;         // The run's main metric.
  bool lower_is_better = false;
  std::optional<double> last;
  std::optional<double> best;
  Round best_round = 0;
  std::optional<double> train_loss;  // The two losses: the last known values.
  std::optional<double> eval_loss;
  std::optional<Reached>
      reached;  // None: the run never reached RunComparison::goal, or there is no goal.
};

/// A setting that is not the same in both runs; its values as JSON.
struct SettingDifference {
  std::string setting;  // The name in the stored settings.
  std::string flag;     // "--lr"; the setting's name if it has no flag.
  std::array<std::string, 2> values;
};

struct RunComparison {
  std::array<RunFigures, 2> runs;
  std::vector<SettingDifference> settings;
  /// A value of the main metric, which both runs have: the one asked for, else the target of a run,
  /// else the best value that both have reached.
  std::optional<double> goal;
  std::string goal_from;  // Says which of these the goal is.
};

/// `goal`: none if none was asked for. Errors: invalid_input, if a goal is asked for and the runs
/// have different main metrics.
[[nodiscard]] Result<RunComparison> compare_runs(Store& store, const RunRecord& first,
                                                 const RunRecord& second,
                                                 std::optional<double> goal);

/// A table, or JSON; each ends with a newline.
[[nodiscard]] std::string comparison_table(const RunComparison& comparison);
[[nodiscard]] std::string comparison_json(const RunComparison& comparison);

}  // namespace fl::server
