// SPDX-License-Identifier: Apache-2.0
#include "server/history/operators.hpp"

#include "server/history/audit.hpp"
#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<void> Operators::add(const OperatorRecord& record, std::string_view by) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const auto known, db_.find(
                                 "SELECT revoked_at FROM operator WHERE name = ?1",
                                 [](const Row& row) { return !row.is_null(0); }, record.name));
    if (known && !*known) {
      return Error(Errc::conflict,
                   fmt::format("there is an operator '{}': revoke it first, or take "
                               "another name",
                               record.name));
    }
    FL_CHECK(db_.run("DELETE FROM operator WHERE name = ?1", record.name));
    FL_CHECK(operator_table.insert(db_, record));
    return audit_.note(
        AuditKind::operators, "",
        fmt::format("'{}' is an operator now, with the role {}", record.name, record.role), by);
  });
}

Result<void> Operators::revoke(std::string_view name, std::string_view by) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    FL_TRY(const int changed,
           db_.run("UPDATE operator SET revoked_at = ?2 WHERE name = ?1 AND revoked_at IS NULL",
                   name, now));
    if (changed == 0) {
      return Error(Errc::not_found, fmt::format("there is no operator '{}', or it is revoked: "
                                                "'fl-server operator list' shows them",
                                                name));
    }
    return audit_.note(AuditKind::operators, "", fmt::format("'{}' is revoked", name), by);
  });
}

Result<std::vector<OperatorRecord>> Operators::all() {
  return db_.query(operator_table.select("ORDER BY name"), operator_table.reader());
}

Result<std::optional<OperatorRecord>> Operators::find(std::string_view name) {
  return db_.find(operator_table.select("WHERE name = ?1 AND revoked_at IS NULL"),
                  operator_table.reader(), name);
}

Result<std::optional<OperatorRecord>> Operators::with_token(std::string_view token_hash) {
  return db_.find(operator_table.select("WHERE token_hash = ?1 AND revoked_at IS NULL"),
                  operator_table.reader(), token_hash);
}

}  // namespace fl::server
