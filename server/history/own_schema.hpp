// SPDX-License-Identifier: Apache-2.0
// Checks that a history's tables and views are those that this program makes. A history may come
// from somebody else, and a view is a program: one by our name that never ends would hang every
// reader. Any thread, with a connection of its own.
#pragma once

#include "server/history/sqlite.hpp"

namespace fl::server {

/// Compares each table, view, index and trigger of our schema with what the migrations up to the
/// database's own version make, but for comments and spaces. Objects by other names are left alone,
/// except triggers on our tables, which would run when we write. It only reads; the version is
/// known (check_schema()). Errors: conflict.
[[nodiscard]] Result<void> check_own_schema(Database& db);

}  // namespace fl::server
