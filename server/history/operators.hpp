// SPDX-License-Identifier: Apache-2.0
// The people who may log in at the admin pages. The audit has each change, in the same transaction,
// and `by`, who made it. Threads, transactions and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace fl::server {

class Audit;
class Database;

class Operators {
 public:
  Operators(Database& db, Audit& audit) : db_(db), audit_(audit) {}

  /// Errors: conflict, if an operator has the name who is not revoked.
  [[nodiscard]] Result<void> add(const OperatorRecord& record, std::string_view by);
  /// Errors: not_found.
  [[nodiscard]] Result<void> revoke(std::string_view name, std::string_view by);
  [[nodiscard]] Result<std::vector<OperatorRecord>> all();  // By name, with revoked ones.
  /// The operator with this name, unless it is revoked.
  [[nodiscard]] Result<std::optional<OperatorRecord>> find(std::string_view name);
  /// The operator whose token has this hash, unless it is revoked.
  [[nodiscard]] Result<std::optional<OperatorRecord>> with_token(std::string_view token_hash);

 private:
  Database& db_;
  Audit& audit_;
};

}  // namespace fl::server
