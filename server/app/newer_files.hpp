// SPDX-License-Identifier: Apache-2.0
// Finds files of a state that are newer than its history: then a part of the history is missing.
// It was copied without its -wal file, say, or restored from a backup. A server that went on would
// make other models of the same numbers, and let members in that were revoked.
//
// A crash leaves what its round was to make: files of one version more than is recorded, and no
// more than that. Blocking, but for keep_audit_note(); any thread.
#pragma once

#include "server/history/history_changes.hpp"
#include "server/history/store_thread.hpp"
#include "shared/base/error.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace fl::server {

struct NewerFile {
  std::filesystem::path path;  // The path in the state. A folder stands for all that is in it.
  std::string why;             // Why it is newer, as a clause: "… run 1 ends at version 3".
};

/// Another process may use the state meanwhile. Errors: those of read_extent().
[[nodiscard]] Result<std::vector<NewerFile>> find_newer_files(const std::filesystem::path& state);

/// Returns `conflict` if there are newer files; the text says what is missing and what to do.
[[nodiscard]] Result<void> check_nothing_newer(const std::filesystem::path& state);

/// Moves the newer files into a new folder of the state, and says so in the log. The state is
/// locked.
[[nodiscard]] Result<void> set_newer_aside(const std::filesystem::path& state);

/// Writes beside the history how many rows its audit has, as nothing else on the disk tells of
/// members. Called after the rows are durable, so the note is never ahead.
[[nodiscard]] Result<void> note_audit(const std::filesystem::path& state, std::int64_t rows);

/// Keeps that note up to date until `stop`. A note that can't be written is tried again, and the
/// log says so once: no run ends for it. On the strand of `store`.
[[nodiscard]] Awaitable<void> keep_audit_note(StoreThread& store, HistoryChanges& changes,
                                              std::filesystem::path state,
                                              std::shared_ptr<std::atomic<bool>> stop);
/// Writes the note at the end of a server, with the rows since keep_audit_note() last looked. The
/// log says if it can't be written.
void note_last_audit(Audit& audit, const std::filesystem::path& state);

}  // namespace fl::server
