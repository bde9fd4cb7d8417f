// SPDX-License-Identifier: Apache-2.0
// Steps of the history's schema (schema.cpp) for masked rounds and their codec. Text only; any
// thread.
#pragma once

namespace fl::server {

// The steps of the codec "lanes", which follow from a round's updates and serve the next one's.
inline constexpr const char* lane_steps = R"sql(
ALTER TABLE checkpoint ADD COLUMN lane_steps TEXT NOT NULL DEFAULT '';
)sql";

// What the members of a masked round, and the server, have said in it. Each row is durable before
// it is answered; all go with the round's end.
inline constexpr const char* masked_messages = R"sql(
CREATE TABLE masked_message (
  id      INTEGER PRIMARY KEY,    -- in the order in which they came
  run_id  INTEGER NOT NULL REFERENCES run (id),
  round   INTEGER NOT NULL CHECK (round >= 1),
  attempt INTEGER NOT NULL CHECK (attempt >= 1),
  client  TEXT NOT NULL,          -- '': the server
  task    INTEGER NOT NULL,       -- the client's; 0: the server
  kind    TEXT NOT NULL,
  message TEXT NOT NULL,          -- a wire::Header, base64url
  UNIQUE (run_id, round, attempt, client, task, kind)
) STRICT;
)sql";

}  // namespace fl::server
