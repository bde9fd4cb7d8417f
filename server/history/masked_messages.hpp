// SPDX-License-Identifier: Apache-2.0
// What has been said in the open masked round: a log, from which a restart comes to where the round
// was. A round's rows go when it is recorded (Rounds::commit). Threads, transactions and errors are
// as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <vector>

namespace fl::server {

class Database;

class MaskedMessages {
 public:
  explicit MaskedMessages(Database& db) : db_(db) {}

  /// Adds messages, all or none. Errors: conflict, if there is one of an attempt, client,
  /// task and kind already.
  [[nodiscard]] Result<void> add(RunId run, Round round,
                                 const std::vector<MaskedMessage>& messages);
  /// The round's messages, in the order in which they were added.
  [[nodiscard]] Result<std::vector<MaskedMessage>> of_round(RunId run, Round round);

 private:
  Database& db_;
};

}  // namespace fl::server
