// SPDX-License-Identifier: Apache-2.0
// Reads how far a history has come, to compare it with the files beside it before anything is
// written.
// Any thread, over a connection of its own.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <filesystem>
#include <map>
#include <optional>

namespace fl::server {

struct HistoryExtent {
  RunId newest_run = 0;  // 0: there is none.
  /// The newest version of each run; none: the run has no model yet. Pruned runs have no entry.
  std::map<RunId, std::optional<Version>> newest_versions;
  /// The newest task of the newest run; none: it has no task.
  std::optional<TaskId> newest_task;
  /// The newest row of the audit, which keeps all of them: who joined, and who was revoked.
  std::int64_t newest_audit = 0;
};

/// Reads a history of this or of an earlier schema, and changes nothing. A missing or empty file
/// knows nothing. Errors: those of Store::open().
[[nodiscard]] Result<HistoryExtent> read_extent(const std::filesystem::path& history);

}  // namespace fl::server
