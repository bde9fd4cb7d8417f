// SPDX-License-Identifier: Apache-2.0
// The runs of the history, from their place in the queue to their end. Threads, transactions and
// errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

class Database;

class Runs {
 public:
  explicit Runs(Database& db) : db_(db) {}

  enum class Others { keep, stop };  // The fate of the runs that are not finished.
  /// Returns the run with its id and its folder.
  [[nodiscard]] Result<RunRecord> create(const RunRecord& run, Others others = Others::keep);
  /// The newest run. Queued ones that were dropped or given up before they began come last.
  [[nodiscard]] Result<std::optional<RunRecord>> latest();
  /// The newest run that has a model; if none has, the newest that is not given up.
  [[nodiscard]] Result<std::optional<RunRecord>> newest_begun();
  /// The run to work on: the one that is running; else the oldest that waits, those that have
  /// stepped aside last.
  [[nodiscard]] Result<std::optional<RunRecord>> next_open();
  /// The number of runs that are waiting or running.
  [[nodiscard]] Result<std::size_t> open_count();
  /// The run that a reader wants to see first: the running one; else the newest that has a round;
  /// else the one that begins next.
  [[nodiscard]] Result<std::optional<RunRecord>> shown();
  [[nodiscard]] Result<std::optional<RunRecord>> find(RunId run);
  [[nodiscard]] Result<std::optional<RunRecord>> find_key(const std::string& key);
  [[nodiscard]] Result<std::vector<RunSummary>> all();  // Oldest first.
  /// With `finished`, tasks of the run that are still `offered` become `late`, and those of a round
  /// that never closed become `lost`. Errors: not_found.
  [[nodiscard]] Result<void> set_state(RunId run, RunState state);
  /// Stops a run that has no model yet, wherever it is in the queue. A server that waits for this
  /// run's clients reads `why` and goes on with the next run. Returns false if the run does not
  /// wait.
  [[nodiscard]] Result<bool> give_up(RunId run, const std::string& why);
  /// Puts a run that has no model yet behind the others that wait, because the clients that come
  /// can't train it. Returns false if no other waits, or the run does not.
  [[nodiscard]] Result<bool> step_aside(RunId run);
  /// Records that the run ends before its last round. What evaluators answer later does not change
  /// that; other settings (change()) do. Errors: not_found.
  [[nodiscard]] Result<void> end_early(RunId run, const std::string& why);
  /// Gives the run other settings. A finished run that has closed fewer than `rounds_total` rounds
  /// is `running` again: so a start with a larger --rounds goes on where the run was. Errors:
  /// not_found.
  [[nodiscard]] Result<void> change(RunId run, Round rounds_total, const std::string& config_json);

 private:
  Database& db_;
};

}  // namespace fl::server
