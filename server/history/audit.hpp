// SPDX-License-Identifier: Apache-2.0
// The audit records who came in or was kept out, and what people did. Rows are only ever added.
// Each says who did it: "operator 'eve'", "alice at the command line", "somebody with the pages'
// token", a client by its name, "the server", or "a stranger", who has shown no identity. Threads,
// transactions and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/base/line_limit.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

class Database;

class Audit {
 public:
  explicit Audit(Database& db) : db_(db) {}

  static constexpr std::string_view the_server = "the server";
  static constexpr std::string_view a_stranger = "a stranger";

  /// Adds a row. A peer can cause some kinds of rows by itself: only a few of one kind and actor
  /// in a minute become rows; the others are counted. `who` did it; "": the client, or without one
  /// a stranger.
  [[nodiscard]] Result<void> add(AuditKind kind, std::string_view client, std::string_view text,
                                 std::string_view who = "");
  /// Adds a row for each kind and client whose rows were only counted, once their minute is over.
  /// After an error the next call adds them.
  [[nodiscard]] Result<void> add_counts();
  /// Adds a row: what `who` did at the control desk or the command line, and to which client; "":
  /// to none.
  [[nodiscard]] Result<void> add_control(std::string_view who, std::string_view client,
                                         std::string_view text);
  /// The number of rows.
  [[nodiscard]] Result<std::int64_t> rows();
  /// Rows, oldest first; without a client all.
  [[nodiscard]] Result<std::vector<AuditRecord>> all(const std::string& client = "");

  // For other parts of the store, whose transaction has the row as well.

  /// Adds a row in the caller's transaction.
  [[nodiscard]] Result<void> note(AuditKind kind, std::string_view client, std::string_view text,
                                  std::string_view who);
  /// False: there were too many such rows in this minute, so this one is only counted.
  [[nodiscard]] bool passes(AuditKind kind, std::string_view client, std::string_view who = "");

 private:
  Database& db_;
  LineLimit lines_;
};

}  // namespace fl::server
