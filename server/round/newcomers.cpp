// SPDX-License-Identifier: Apache-2.0
#include "server/round/newcomers.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>
#include <utility>

namespace fl::server {

void Newcomers::hear(const std::string& client, Newcomer newcomer) {
  Heard& heard = heard_[client];
  const bool has_declined = heard.newcomer.waits_for == WaitsFor::another_run;
  if (has_declined && newcomer.waits_for == WaitsFor::its_data)
    newcomer.waits_for = WaitsFor::another_run;
  const bool gets_ready = newcomer.waits_for == WaitsFor::its_data;
  heard.newcomer = std::move(newcomer);
  heard.until =
      Clock::now() + (gets_ready ? Duration(limits::ready_max) : Duration(limits::newcomer_max));
}

void Newcomers::decline(const std::string& client) {
  const auto found = heard_.find(client);
  if (found == heard_.end()) return;
  found->second.newcomer.waits_for = WaitsFor::another_run;
  found->second.until = Clock::now() + limits::newcomer_max;
}

const Newcomer* Newcomers::find(const std::string& client) const {
  const auto found = heard_.find(client);
  return found != heard_.end() && Clock::now() < found->second.until ? &found->second.newcomer
                                                                     : nullptr;
}

std::size_t Newcomers::count() const {
  const TimePoint now = Clock::now();
  return static_cast<std::size_t>(
      std::ranges::count_if(heard_, [now](const auto& each) { return now < each.second.until; }));
}

std::vector<std::pair<std::string, Newcomer>> Newcomers::all() const {
  const TimePoint now = Clock::now();
  std::vector<std::pair<std::string, Newcomer>> known;
  for (const auto& [client, heard] : heard_)
    if (now < heard.until) known.emplace_back(client, heard.newcomer);
  return known;
}

}  // namespace fl::server
