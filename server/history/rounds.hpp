// SPDX-License-Identifier: Apache-2.0
// The rounds of a run, their tasks, and the versions of the model that they make. Threads,
// transactions and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fl::server {

class Database;

class Rounds {
 public:
  explicit Rounds(Database& db) : db_(db) {}

  /// Records version 0 and makes the run `running`, together. Errors: conflict, if the run is not
  /// `waiting`.
  [[nodiscard]] Result<void> set_initial_model(RunId run, const CheckpointRecord& checkpoint);
  /// Opens a round with its tasks, and returns the tasks with their ids, in the given order. Tasks
  /// of earlier rounds that are still `offered` move into this one. Errors: conflict, if it does
  /// not follow the run's last round.
  [[nodiscard]] Result<std::vector<TaskRecord>> open(RunId run, const RoundRecord& round,
                                                     std::vector<TaskRecord> tasks);
  /// Adds tasks to an open round: replacements. Errors: not_found; conflict, if it is closed.
  [[nodiscard]] Result<std::vector<TaskRecord>> add_tasks(RunId run, Round round,
                                                          std::vector<TaskRecord> tasks);
  /// Writes the verdicts of several tasks at once (the engine commits in groups). If one of them
  /// has a verdict already, that is `conflict`, and nothing is changed.
  [[nodiscard]] Result<void> decide(const std::vector<TaskRecord>& tasks);
  /// Closes the round: ends its row, removes its masked messages, inserts the row of the
  /// checkpoint, adds each task's traffic and marks the dropped checkpoints. Tasks that are still
  /// `offered`, with a base before `oldest_base`, become `late`. The clients of accepted updates
  /// were seen now. Errors: conflict if the round is not open; then nothing is changed.
  [[nodiscard]] Result<void> commit(const RoundCommit& commit);

  /// Marks checkpoints of a run as dropped, after its last round.
  [[nodiscard]] Result<void> drop(RunId run, const std::vector<Version>& versions);

  struct StoredRound {
    RoundRecord round;
    std::vector<TaskRecord> tasks;  // All tasks of the round, by id.
  };
  /// The round that was open when the server stopped; none if no round was.
  [[nodiscard]] Result<std::optional<StoredRound>> unfinished(RunId run);
  /// A round that is recorded. Errors: not_found; conflict, if it is open.
  [[nodiscard]] Result<StoredRound> closed(RunId run, Round round);
  /// The tasks of one round, by id.
  [[nodiscard]] Result<std::vector<TaskRecord>> tasks(RunId run, Round round);
  /// The `offered` tasks of all rounds, by id.
  [[nodiscard]] Result<std::vector<TaskRecord>> offered_tasks(RunId run);
  [[nodiscard]] Result<std::optional<TaskRecord>> find_task(RunId run, TaskId task);

  /// The kept checkpoints, by version.
  [[nodiscard]] Result<std::vector<CheckpointRecord>> checkpoints(RunId run);
  /// The checkpoints that the newest commit with any has dropped: their files may still be there.
  [[nodiscard]] Result<std::vector<CheckpointRecord>> last_dropped(RunId run);

  /// Facts of the closed rounds, and of all tasks, that the next round needs.
  struct Before {
    std::uint64_t population = 0;  // RoundRecord::population of the last closed round; 0: none is.
    /// The norm of each client's last update that was accepted in a closed round, or refused for
    /// its norm.
    std::map<std::string, double> norms;
    /// The examples of the newest task of each client that was ever asked.
    std::map<std::string, std::uint64_t> examples;
  };
  [[nodiscard]] Result<Before> before(RunId run);
  /// The number of accepted updates of each client, with those of the open round. Clients without
  /// any are missing.
  [[nodiscard]] Result<std::map<std::string, std::uint64_t>> accepted_counts(RunId run);
  /// Each client's last accepted task with a codec "delta+…" in a closed round.
  [[nodiscard]] Result<std::map<std::string, TaskId>> newest_deltas(RunId run);
  /// The clients whose newest decided tasks did not count. A task that was late is one of them if
  /// its round lasted for `deadline_s`; with 0 it never is. `now` is in seconds since 1970.
  [[nodiscard]] Result<std::map<std::string, Misses>> misses(RunId run, double deadline_s,
                                                             double now);
  /// What the closed rounds tell of each client.
  [[nodiscard]] Result<std::map<std::string, ClientHistory>> client_histories(RunId run);

 private:
  Database& db_;
};

}  // namespace fl::server
