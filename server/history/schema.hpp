// SPDX-License-Identifier: Apache-2.0
// The schema of the history as a list of migrations, and the check that a file is ours. Migrations
// are only ever appended to the list: a database of any earlier version takes those it lacks.
#pragma once

#include "server/history/sqlite.hpp"

#include <span>

namespace fl::server {

/// PRAGMA application_id of our databases: "TRIB".
inline constexpr int history_application_id = 0x54524942;

struct Migration {
  const char* what;  // For error messages.
  const char* sql;
};

/// Migration i (from 0) takes a database from PRAGMA user_version i to i + 1.
[[nodiscard]] std::span<const Migration> history_migrations();

/// The schema version of an open database; 0 for an empty file. It only reads. Another program's
/// database and a schema that is newer than `newest` are `conflict`.
[[nodiscard]] Result<int> check_schema(Database& db, int newest);

/// Applies the migrations that the database lacks, each in a transaction of its own.
[[nodiscard]] Result<void> migrate(Database& db, std::span<const Migration> migrations);

}  // namespace fl::server
