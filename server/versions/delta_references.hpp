// SPDX-License-Identifier: Apache-2.0
// For codecs "delta+…" (shared/codec/encode/feedback.hpp), whose clients send the difference to
// their last update: keeps that last update of each client, as it counted. Each is a file of fp32
// values, named by its task. So memory does not grow with the clients. The disk holds 4 bytes a
// parameter for each client, and while a round is open as much again for each that takes part. The
// files stay at the end of a run, which may go on with more rounds, and go when another run begins.
//
// An update's file is written while the update is added to the sums. When a restart makes the sums
// again, it makes the file again too, from the spool and from the file it refers to: so it must be
// durable only when the round is recorded. A client's newest file follows from the history: it is
// that of its last accepted delta in a recorded round.
//
// On the engine's strand. Workers call keep(), apply() and sync(), and the functions that the first
// two return, several at once: these use only members that do not change.
#pragma once

#include "server/history/records.hpp"
#include "server/sums/accumulator.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace fl::server {

class DeltaReferences {
 public:
  using Tasks = std::map<std::string, TaskId>;  // Tasks by client.

  /// `bytes` is the size of one file: 4 for each value of an update.
  DeltaReferences(Files& files, std::filesystem::path folder, std::uint64_t bytes)
      : files_(files), folder_(std::move(folder)), bytes_(bytes) {}
  using Places = std::map<TaskId, std::filesystem::path>;
  /// For a replay: the references lie at these places, and nothing is written. Only keep(), apply()
  /// and sync() may be called.
  DeltaReferences(Files& files, Places places)
      : files_(files), places_(std::move(places)), is_replay_(true) {}

  /// The file of a task's update.
  [[nodiscard]] static std::filesystem::path path_of(const std::filesystem::path& folder,
                                                     TaskId task);

  /// Prepares the references at a start. `newest` has each client's newest task
  /// (Rounds::newest_deltas). References whose file is missing or truncated are forgotten, as if
  /// there had been none. All other files are removed.
  [[nodiscard]] Result<void> prepare(Tasks newest);

  /// The task that this client's next update may refer to, or none.
  [[nodiscard]] TaskId of(const std::string& client) const;

  /// The function that turns the decoded delta of `task` into the update: it adds the update of
  /// `reference` (unless none) and writes the result to the task's file. Errors name the file.
  [[nodiscard]] Result<AdjustUpdate> keep(TaskId task, TaskId reference) const;

  /// Like keep(), but the function writes nothing: for an update that was kept already, and is read
  /// again or taken back.
  [[nodiscard]] Result<AdjustUpdate> apply(TaskId reference) const;

  /// Forgets a task that was refused. With `is_reference_bad` the file that it refers to can't be
  /// read, so the client's next update refers to nothing.
  [[nodiscard]] Result<void> refuse(const std::string& client, TaskId task, bool is_reference_bad);

  /// When it returns, the files of these tasks and their names are on stable storage. A sync that
  /// fails is `io`, even on a full disk, as it must not be tried again.
  [[nodiscard]] Result<void> sync(const Tasks& tasks) const;

  /// Call it when the round of these tasks is recorded: they are their clients' newest from now on.
  /// The files of other tasks are removed.
  [[nodiscard]] Result<void> advance(const Tasks& tasks);

 private:
  [[nodiscard]] Result<AdjustUpdate> adjust(TaskId to, TaskId reference) const;
  [[nodiscard]] std::filesystem::path path_of(TaskId task) const;
  [[nodiscard]] Result<bool> is_whole(TaskId task) const;
  [[nodiscard]] Result<void> remove_others() const;

  Files& files_;
  std::filesystem::path folder_;
  std::uint64_t bytes_ = 0;
  Tasks newest_;
  Places places_;
  bool is_replay_ = false;
};

}  // namespace fl::server
