// SPDX-License-Identifier: Apache-2.0
#include "server/history/masked_messages.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

namespace fl::server {

Result<void> MaskedMessages::add(RunId run, Round round,
                                 const std::vector<MaskedMessage>& messages) {
  return db_.write([&]() -> Result<void> {
    for (const MaskedMessage& message : messages) {
      FL_CHECK(masked_message_table.insert(db_, message,
                                           {{"run_id", run}, {"round", std::int64_t{round}}}));
    }
    return {};
  });
}

Result<std::vector<MaskedMessage>> MaskedMessages::of_round(RunId run, Round round) {
  return db_.query(masked_message_table.select("WHERE run_id = ?1 AND round = ?2 ORDER BY id"),
                   masked_message_table.reader(), run, round);
}

}  // namespace fl::server
