// How the store's records are written in columns: names of states, digests, seeds. Reading checks
// them, as a file may have been edited by hand; what doesn't fit is `corrupt`.
#pragma once

#include "server/history/sqlite.hpp"
#include "server/history/store.hpp"

namespace fl {

[[nodiscard]] std::string_view to_text(RunState state);
[[nodiscard]] std::string_view to_text(TaskState state);
[[nodiscard]] Result<RunState> run_state_of(std::string_view text);
[[nodiscard]] Result<TaskState> task_state_of(std::string_view text);

/// Column `column` as a digest; NULL is the zero digest.
[[nodiscard]] Result<Digest> digest_of(const Row& row, int column);
/// NULL for the zero digest, which means "none".
[[nodiscard]] std::optional<std::string> column_of(const Digest& digest);

[[nodiscard]] inline std::uint64_t unsigned_of(const Row& row, int column) {
  return static_cast<std::uint64_t>(row.integer(column));  // The schema's CHECKs keep it from < 0.
}
/// Times that may be absent are NULL in the table and 0 in the records.
[[nodiscard]] inline double time_of(const Row& row, int column) {
  return row.optional_real(column).value_or(0);
}

}  // namespace fl
