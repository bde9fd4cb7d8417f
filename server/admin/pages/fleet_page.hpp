// SPDX-License-Identifier: Apache-2.0
// The JSON of /api/fleet: who may take part, from the history, with what each is doing, from the
// engine.
#pragma once

#include "server/history/page_records.hpp"
#include "server/round/status.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// What the history knows of a page's clients.
struct FleetRecords {
  std::vector<ClientRecord> clients;
  std::map<std::string, NewestUpload> uploads;  // By client.
  std::size_t total = 0;                        // The number of all clients.
  bool has_more = false;
};

/// `members` are of the same clients, in the same order. `now`: Unix seconds. Without
/// `show_clients` errors have no figures of a client's data, and its number of examples is left
/// out.
[[nodiscard]] std::string fleet_text(const FleetRecords& records,
                                     const std::vector<MemberStatus>& members, double now,
                                     bool show_clients);

/// What the client does next, or the server for it.
[[nodiscard]] std::string_view next_step(const ClientRecord& client, const MemberStatus& member);

}  // namespace fl::server
