// The schema of the history as a list of migrations, and the check that a file is ours. The list is
// only ever appended to: a database made by any earlier version walks the rest of it.
#pragma once

#include "server/history/sqlite.hpp"

#include <span>

namespace fl {

/// PRAGMA application_id of our databases: "TRIB".
inline constexpr int history_application_id = 0x54524942;

struct Migration {
  const char* what;  // For messages.
  const char* sql;
};

/// Migration i (from 0) leads from PRAGMA user_version i to i + 1.
[[nodiscard]] std::span<const Migration> history_migrations();

/// The schema version of an open database; 0 for an empty file. Only reads. Another program's
/// database and a schema newer than `newest` are `conflict`.
[[nodiscard]] Result<int> check_schema(Database& db, int newest);

/// Walks `migrations` from the database's version on, each in a transaction of its own.
[[nodiscard]] Result<void> migrate(Database& db, std::span<const Migration> migrations);

}  // namespace fl
