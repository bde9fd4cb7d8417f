// SPDX-License-Identifier: Apache-2.0
// The events: what happened and is in no other table, such as who came and went, or what failed.
// Threads, transactions and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fl::server {

class Database;

class Events {
 public:
  explicit Events(Database& db) : db_(db) {}

  static constexpr std::int64_t rows_max = 100'000;  // The newest ones are kept.

  /// `run` 0: an event outside of any run. A text of more than limits::event_bytes_max bytes is
  /// cut.
  [[nodiscard]] Result<void> add(RunId run, EventLevel level, std::string_view text);
  /// add() for callers that must not fail by it: on a full disk, say, the event is left out, and
  /// the log says so.
  void note(RunId run, EventLevel level, std::string_view text);
  /// All events, oldest first. With a run: its events, and those outside of any run.
  [[nodiscard]] Result<std::vector<EventRecord>> all(std::optional<RunId> run);
  /// Those of all() that came after the call before with this `seen`, which begins with 0.
  [[nodiscard]] Result<std::vector<EventRecord>> since(std::int64_t& seen,
                                                       std::optional<RunId> run);

 private:
  Database& db_;
};

}  // namespace fl::server
