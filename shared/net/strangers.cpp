// SPDX-License-Identifier: Apache-2.0
#include "shared/net/strangers.hpp"

#include "shared/base/error.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <span>

namespace fl {

Strangers::Id Strangers::enter(Address address, TimePoint now) {
  all_[++last_] = Stranger{address, now, Stage::silent, {}};
  ++counts_[address].all;
  return last_;
}

void Strangers::speak(Id id) {
  const auto found = all_.find(id);
  if (found == all_.end() || found->second.stage != Stage::silent) return;
  found->second.stage = Stage::waiting;
  ++waiting_;
}

void Strangers::leave(Id id) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  const Stranger& stranger = found->second;
  const auto counts = counts_.find(stranger.address);
  FL_ASSERT(counts != counts_.end());
  if (stranger.stage == Stage::shaking) {
    --counts->second.shaking;
    --shaking_;
  }
  if (stranger.stage == Stage::waiting) --waiting_;
  if (--counts->second.all == 0) counts_.erase(counts);
  all_.erase(found);
}

Strangers::Moves Strangers::next(TimePoint now) {
  Moves moves;
  end_overdue(now, moves);
  end_surplus(moves);
  begin_waiting(now, moves);
  return moves;
}

template <class Claim>
Strangers::Entry Strangers::oldest(Claim claim) {
  return std::find_if(all_.begin(), all_.end(),
                      [&](const auto& entry) { return claim(entry.second); });
}

/// Who ends when this address has too many: the oldest of the least stage. The newest connection
/// has had no time to speak yet, so it ends only if there is no other.
Strangers::Entry Strangers::surplus_of(Address address) {
  const auto newest = std::prev(all_.end());
  for (const Stage stage : {Stage::silent, Stage::waiting, Stage::shaking}) {
    const auto found = std::find_if(all_.begin(), newest, [&](const auto& entry) {
      return entry.second.stage == stage && entry.second.address == address;
    });
    if (found != newest) return found;
  }
  return newest;
}

Strangers::Entry Strangers::next_to_begin() {
  auto best = all_.end();
  std::size_t least = limits_.handshakes_of_address;
  for (auto it = all_.begin(); it != all_.end(); ++it) {
    if (it->second.stage != Stage::waiting) continue;
    const std::size_t shaking = counts_.at(it->second.address).shaking;
    if (shaking >= least) continue;
    least = shaking;
    best = it;
  }
  return best;
}

void Strangers::close(Entry entry, Moves& moves) {
  moves.close.push_back(entry->first);
  leave(entry->first);
}

void Strangers::end_overdue(TimePoint now, Moves& moves) {
  while (!all_.empty() && now - all_.begin()->second.since >= limits_.time)
    close(all_.begin(), moves);
}

/// Only the newest connection's address can have become too many. When all are too many, the
/// address with the most gives way: one with few connections keeps them.
void Strangers::end_surplus(Moves& moves) {
  while (!all_.empty()) {
    const Address newest = all_.rbegin()->second.address;
    const bool is_address_full = counts_.at(newest).all > limits_.of_address;
    if (!is_address_full && all_.size() <= limits_.all) return;
    const auto most =
        std::ranges::max_element(counts_, {}, [](const auto& entry) { return entry.second.all; });
    close(surplus_of(is_address_full ? newest : most->first), moves);
  }
}

/// Gives the places for handshakes to those that wait: to the address that has the fewest of them,
/// and of one address to the oldest. When there is none, the oldest handshake that has had its turn
/// makes room.
void Strangers::begin_waiting(TimePoint now, Moves& moves) {
  while (waiting_ > 0) {
    const bool is_full = shaking_ >= limits_.handshakes;
    const auto first =
        oldest([](const Stranger& stranger) { return stranger.stage == Stage::waiting; });
    const auto next = is_full ? all_.end() : next_to_begin();
    if (next != all_.end()) {
      next->second.stage = Stage::shaking;
      next->second.began = now;
      --waiting_;
      ++shaking_;
      ++counts_.at(next->second.address).shaking;
      moves.begin.push_back(next->first);
      continue;
    }
    const auto slow = oldest([&](const Stranger& stranger) {
      return stranger.stage == Stage::shaking && now - stranger.began >= limits_.turn &&
             (is_full || stranger.address == first->second.address);
    });
    if (slow == all_.end()) return;
    close(slow, moves);
  }
}

Strangers::Address stranger_address(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  if (address.sa_family != AF_INET6) return 0;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  std::span<const std::uint8_t> bytes(v6.s6_addr);
  bytes = IN6_IS_ADDR_V4MAPPED(&v6) ? bytes.last(sizeof(in_addr))
                                    : bytes.first(sizeof(Strangers::Address));
  Strangers::Address network = 0;
  for (const std::uint8_t byte : bytes) network = network << 8 | byte;
  return network;
}

}  // namespace fl
