// SPDX-License-Identifier: Apache-2.0
// A backup of a state folder, made beside a running server: a folder from which fl-server can go
// on. It is the state of one moment, that of the history's copy. Files are checked against the
// history while they are copied. Blocking.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace fl::server {

struct BackupReport {
  std::size_t files = 0;
  std::uint64_t bytes = 0;
  std::size_t models = 0;
  /// What the backup lacks, each with its reason: versions that the server dropped meanwhile or
  /// whose files are damaged, updates of the open round that it has used up.
  std::vector<std::string> left_out;
};

/// Writes `to`, which must not exist. `store` is the history of `state`. If a run that is not over
/// could not go on from the backup, as its newest model or what its next round needs is gone, the
/// copy is made again, a few times; then it is an error (`unavailable`: the server was faster), as
/// are a full disk and the like. Then the unfinished copy, TO.tmp, is removed.
[[nodiscard]] Result<BackupReport> back_up(Files& files, Store& store,
                                           const std::filesystem::path& state,
                                           const std::filesystem::path& to);

}  // namespace fl::server
