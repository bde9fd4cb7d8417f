// SPDX-License-Identifier: Apache-2.0
#include "shared/net/strangers.hpp"

#include "shared/base/error.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

namespace fl {

Strangers::Id Strangers::enter(Address address, TimePoint now) {
  all_[++last_] = Stranger{.address = address, .since = now};
  parties_[address].at(Stage::silent).insert(last_);
  return last_;
}

void Strangers::greet(Id id, Duration round_trip) {
  const auto found = all_.find(id);
  if (found == all_.end() || found->second.stage != Stage::silent) return;
  found->second.turn = std::clamp<Duration>(round_trip * limits::handshake_round_trips,
                                            limits_.turn, limits_.turn_max);
  move_to(id, Stage::waiting);
}

void Strangers::admit(Id id, const std::string& member, TimePoint now) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  book_.bear_fruit(found->second.address, member, now);
  leave(id);
}

void Strangers::leave(Id id) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  const Stranger& stranger = found->second;
  const auto party = parties_.find(stranger.address);
  FL_ASSERT(party != parties_.end());
  party->second.at(stranger.stage).erase(id);
  if (stranger.stage == Stage::shaking) {
    --shaking_;
    if (!stranger.is_from_known) --shaking_unknown_;
  }
  if (stranger.stage == Stage::waiting) --waiting_;
  if (party->second.count() == 0) parties_.erase(party);
  all_.erase(found);
}

Strangers::Moves Strangers::next(TimePoint now) {
  Moves moves;
  end_overdue(now, moves);
  end_surplus(now, moves);
  begin_waiting(now, moves);
  return moves;
}

void Strangers::move_to(Id id, Stage stage) {
  Stranger& stranger = all_.at(id);
  Party& party = parties_.at(stranger.address);
  party.at(stranger.stage).erase(id);
  party.at(stage).insert(id);
  if (stranger.stage == Stage::waiting) --waiting_;
  if (stage == Stage::waiting) ++waiting_;
  if (stage == Stage::shaking) ++shaking_;
  stranger.stage = stage;
}

void Strangers::close(Id id, Moves& moves) {
  moves.close.push_back(id);
  leave(id);
}

void Strangers::end_overdue(TimePoint now, Moves& moves) {
  while (!all_.empty() && now - all_.begin()->second.since >= limits_.time)
    close(all_.begin()->first, moves);
}

/// Returns the connection to end when this address has too many: silent ones first, then waiting
/// ones, then handshakes, of each the oldest. The newest connection has had no time to speak yet,
/// so it ends only if there is no other.
Strangers::Id Strangers::surplus_of(Party& party) {
  const Id newest = all_.rbegin()->first;
  for (const auto& ids : party.ids)
    if (!ids.empty() && *ids.begin() != newest) return *ids.begin();
  return newest;
}

/// Returns the connection to end when all are too many: one of an address with the most
/// connections; of these first those from where no member was lately, silent ones first, then
/// waiting ones, then handshakes, and the oldest. The newest connection ends only if there is no
/// other.
Strangers::Id Strangers::surplus_of_all(TimePoint now) {
  std::size_t most = 0;
  for (const auto& [address, party] : parties_) most = std::max(most, party.count());
  using Rank = std::pair<bool, Stage>;
  constexpr Rank first_to_end{false, Stage::silent};
  const Id newest = all_.rbegin()->first;
  Id found = newest;
  Rank least{true, Stage::shaking};
  for (const auto& [id, stranger] : all_) {
    if (id == newest || parties_.at(stranger.address).count() < most) continue;
    const Rank rank{book_.is_known(stranger.address, now), stranger.stage};
    if (found != newest && rank >= least) continue;
    found = id;
    least = rank;
    if (rank == first_to_end) break;
  }
  return found;
}

/// Only the newest connection's address can have got too many. When there are too many in all, the
/// address with the most gives way: one with few connections keeps them.
void Strangers::end_surplus(TimePoint now, Moves& moves) {
  while (!all_.empty()) {
    Party& newest = parties_.at(all_.rbegin()->second.address);
    if (newest.count() > limits_.of_address)
      close(surplus_of(newest), moves);
    else if (all_.size() > limits_.all)
      close(surplus_of_all(now), moves);
    else
      return;
  }
}

bool Strangers::is_full_for(Address address, TimePoint now) const {
  if (shaking_ >= limits_.handshakes) return true;
  return !book_.is_known(address, now) &&
         shaking_unknown_ + limits_.handshakes_reserved >= limits_.handshakes;
}

/// The handshake to end so that one of the address `waiting` may begin; it has had its turn. First
/// those from addresses where no member was lately, of these the address with the most of them, and
/// its oldest.
std::optional<Strangers::Id> Strangers::slow_one(Address waiting, TimePoint now) {
  const std::size_t own = parties_.at(waiting).at(Stage::shaking).size();
  const bool is_own_only = own >= limits_.handshakes_of_address || !is_full_for(waiting, now);
  // If only the places for unknown addresses are taken, a handshake of a known one is not in the
  // way.
  const bool is_unknown_only = shaking_ < limits_.handshakes;
  std::optional<Id> found;
  std::pair<bool, std::size_t> most{};
  for (auto& [address, party] : parties_) {
    if (is_own_only && address != waiting) continue;
    const auto& shaking = party.at(Stage::shaking);
    const auto slow = std::ranges::find_if(shaking, [&](Id id) {
      const Stranger& stranger = all_.at(id);
      return now - stranger.began >= stranger.turn &&
             (is_own_only || !is_unknown_only || !stranger.is_from_known);
    });
    if (slow == shaking.end()) continue;
    const std::pair rank{!all_.at(*slow).is_from_known, shaking.size()};
    if (found && rank <= most) continue;
    found = *slow;
    most = rank;
  }
  return found;
}

void Strangers::begin(Id id, TimePoint now, Moves& moves) {
  Stranger& stranger = all_.at(id);
  move_to(id, Stage::shaking);
  stranger.began = now;
  stranger.is_from_known = book_.is_known(stranger.address, now);
  if (!stranger.is_from_known) ++shaking_unknown_;
  Party& party = parties_.at(stranger.address);
  if (party.served == 0) is_newest_address_next_ = !is_newest_address_next_;
  party.served = ++served_;
  party.is_oldest_next = !party.is_oldest_next;
  book_.try_once(stranger.address, now);
  moves.begin.push_back(id);
}

/// Gives the places for handshakes to those that wait: next is the address with the fewest
/// handshakes, of these the one that was served the longest ago, of those that never were the
/// newest and the oldest by turns. When there is no place for it, a handshake that has had its turn
/// makes room.
void Strangers::begin_waiting(TimePoint now, Moves& moves) {
  while (waiting_ > 0) {
    struct Choice {
      Id id = 0;  // 0: none.
      std::tuple<std::size_t, std::uint64_t, Id> rank{};
      void consider(const Choice& other) {
        if (id == 0 || other.rank < rank) *this = other;
      }
    };
    Choice next, barred;  // The best of those with a place, and of the others.
    for (auto& [address, party] : parties_) {
      const auto& waiting = party.at(Stage::waiting);
      if (waiting.empty() || !book_.may_try(address, now)) continue;
      const std::size_t shaking = party.at(Stage::shaking).size();
      const bool has_place = shaking < limits_.handshakes_of_address && !is_full_for(address, now);
      const Id first = *waiting.begin();
      const Id order = party.served == 0 && is_newest_address_next_ ? last_ - first : first;
      (has_place ? next : barred).consider({party.next(), {shaking, party.served, order}});
    }
    if (next.id != 0) {
      begin(next.id, now, moves);
      continue;
    }
    if (barred.id == 0) return;  // Nobody may begin now.
    const auto slow = slow_one(all_.at(barred.id).address, now);
    if (!slow) return;
    close(*slow, moves);
  }
}

Address stranger_address(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  if (address.sa_family != AF_INET6) return 0;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  std::span<const std::uint8_t> bytes(v6.s6_addr);
  bytes = IN6_IS_ADDR_V4MAPPED(&v6) ? bytes.last(sizeof(in_addr)) : bytes.first(sizeof(Address));
  Address network = 0;
  for (const std::uint8_t byte : bytes) network = network << 8 | byte;
  return network;
}

}  // namespace fl
