// SPDX-License-Identifier: Apache-2.0
// Copies the history for a backup, and removes runs that are over. Threads, transactions and errors
// are as store.hpp says, except for remove_run().
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <filesystem>
#include <string_view>
#include <vector>

namespace fl::server {

class Database;
class Runs;

class Archive {
 public:
  Archive(Database& db, Runs& runs) : db_(db), runs_(runs) {}

  /// Writes the history as it is at this moment into a new file, while others go on writing. The
  /// file is whole, but not synced yet.
  [[nodiscard]] Result<void> copy_into(const std::filesystem::path& file);
  /// In a copy: the files of this version are not there. Tasks that would train from it are late.
  [[nodiscard]] Result<void> forget_checkpoint(RunId run, Version version);
  /// In a copy: the file of an update that an open round has counted is not there. Errors:
  /// not_found.
  [[nodiscard]] Result<void> forget_update(TaskId task, std::string_view reason);
  [[nodiscard]] Result<std::vector<EndedRun>> ended_runs();  // Oldest first.
  /// Removes all rows of a run that is over, in several transactions; the row of the run goes last.
  /// The audit stays. Errors: not_found; conflict, if it is not over.
  [[nodiscard]] Result<void> remove_run(RunId run);
  /// Makes the file as small as its rows. Nobody else may have it open.
  [[nodiscard]] Result<void> give_back_space();

 private:
  Database& db_;
  Runs& runs_;
};

}  // namespace fl::server
