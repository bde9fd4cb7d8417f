// SPDX-License-Identifier: Apache-2.0
// The description of a round whose updates are kept: a file in STATE/kept-updates/run-N, beside the
// updates, with all that the round was made of and that the history has not: the settings that were
// in force, and digests of what lay beside the version that it began from. What the history has of
// the updates stands there again, so that a change of either shows. Blocking.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// An update's bytes as they arrived: a payload, with the spool's mark behind it. With a codec
/// "delta+…" it is the difference to the update of `reference`.
struct KeptUpdate {
  std::string file;  // The file's name, beside the description.
  TaskId task = TaskId::none;
  std::string client;
  std::string codec;
  Version base_version = 0;
  std::uint64_t examples = 0;
  std::uint64_t steps = 0;
  TaskId reference = TaskId::none;
  std::uint64_t bytes = 0;  // The payload's size.
  Digest digest;            // The payload's digest.
  bool operator==(const KeptUpdate&) const = default;
};

/// A file beside the checkpoints, for example the strategy's state (state_names()); or a reference.
struct KeptState {
  std::string file;
  std::uint64_t bytes = 0;
  Digest digest;
  bool operator==(const KeptState&) const = default;
};

struct KeptRound {
  std::string run_key;
  Round round = 0;
  std::string software;  // The software that has closed the round.
  std::string settings;  // The run's settings as JSON (settings_from_json()).
  std::vector<KeptUpdate> updates;
  std::vector<KeptState> state;
  /// The files that deltas refer to (delta_references.hpp), in the description's folder.
  std::vector<KeptState> references;
  bool operator==(const KeptRound&) const = default;
};

/// The updates of a round and what they refer to: all files beside its description.
[[nodiscard]] std::vector<KeptState> files_beside(const KeptRound& round);

/// "round-000012.json", "round-000012-task-57-0123456789abcdef", "round-000012-task-43-reference".
[[nodiscard]] std::string description_name(Round round);
[[nodiscard]] std::string kept_update_name(Round round, const std::string& spool_file);
[[nodiscard]] std::string kept_reference_name(Round round, TaskId reference);
/// The round in such a name; none for any other name.
[[nodiscard]] std::optional<Round> round_of_kept(std::string_view name);

/// The row for the round's update of this task in a description. The task is accepted.
[[nodiscard]] KeptUpdate kept_update_of(Round round, const TaskRecord& task);

/// Writes the description, durably.
[[nodiscard]] Result<void> write_description(Files& files, const std::filesystem::path& folder,
                                             const KeptRound& round);
/// Errors: not_found; corrupt, if it was changed.
[[nodiscard]] Result<KeptRound> read_description(Files& files, const std::filesystem::path& folder,
                                                 Round round);
/// The rounds with a description, in order; none if the folder is missing.
[[nodiscard]] Result<std::vector<Round>> described_rounds(Files& files,
                                                          const std::filesystem::path& folder);

/// The digest of the first `bytes` bytes of a file. Errors: not_found; corrupt, if it is shorter.
[[nodiscard]] Result<Digest> digest_of_file(Files& files, const std::filesystem::path& path,
                                            std::uint64_t bytes);

}  // namespace fl::server
