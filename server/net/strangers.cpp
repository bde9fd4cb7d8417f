// SPDX-License-Identifier: Apache-2.0
#include "server/net/strangers.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <tuple>

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

void Strangers::admit(Id id, TimePoint now) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  book_.bear_fruit(found->second.address, now);
  leave(id);
}

void Strangers::leave(Id id) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  const Stranger& stranger = found->second;
  const auto party = parties_.find(stranger.address);
  FL_ASSERT(party != parties_.end());
  party->second.at(stranger.stage).erase(id);
  if (stranger.stage == Stage::shaking) --shaking_;
  if (stranger.stage == Stage::waiting) --waiting_;
  if (party->second.count() == 0) parties_.erase(party);
  all_.erase(found);
}

Strangers::Moves Strangers::next(TimePoint now) {
  Moves moves;
  end_overdue(now, moves);
  end_surplus(moves);
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

/// Who ends when there are too many: of the address that has too many, or the most, the oldest of
/// the least stage. Only the newest connection's address can have become too large.
void Strangers::end_surplus(Moves& moves) {
  while (!all_.empty()) {
    auto largest = parties_.find(all_.rbegin()->second.address);
    if (largest->second.count() <= limits_.of_address) {
      if (all_.size() <= limits_.all) return;
      largest = std::ranges::max_element(parties_, {},
                                         [](const auto& entry) { return entry.second.count(); });
    }
    const auto& ids = largest->second.ids;
    close(*std::ranges::find_if(ids, [](const auto& each) { return !each.empty(); })->begin(),
          moves);
  }
}

bool Strangers::is_full_for(Address address, TimePoint now) const {
  const std::size_t reserved = book_.is_known(address, now) ? 0 : limits_.handshakes_reserved;
  return shaking_ + reserved >= limits_.handshakes;
}

/// A handshake that has had its turn and is in the way of one of the address `waiting`: of the
/// address with the most of them the oldest.
std::optional<Strangers::Id> Strangers::slow_one(Address waiting, TimePoint now) {
  const std::size_t own = parties_.at(waiting).at(Stage::shaking).size();
  const bool is_own_only = own >= limits_.handshakes_of_address || !is_full_for(waiting, now);
  std::optional<Id> found;
  std::size_t most = 0;
  for (auto& [address, party] : parties_) {
    const auto& shaking = party.at(Stage::shaking);
    if (shaking.size() <= most || (is_own_only && address != waiting)) continue;
    const auto slow = std::ranges::find_if(shaking, [&](Id id) {
      const Stranger& stranger = all_.at(id);
      return now - stranger.began >= stranger.turn;
    });
    if (slow == shaking.end()) continue;
    found = *slow;
    most = shaking.size();
  }
  return found;
}

void Strangers::begin(Id id, TimePoint now, Moves& moves) {
  Stranger& stranger = all_.at(id);
  move_to(id, Stage::shaking);
  stranger.began = now;
  Party& party = parties_.at(stranger.address);
  party.served = ++served_;
  party.is_oldest_next = !party.is_oldest_next;
  book_.try_once(stranger.address, now);
  moves.begin.push_back(id);
}

/// Gives the places for handshakes to those that wait: next is the address with the fewest
/// handshakes, of these the one that was served the longest ago. When there is no place for it, a
/// handshake that has had its turn makes room.
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
      (has_place ? next : barred)
          .consider({party.next(), {shaking, party.served, *waiting.begin()}});
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

}  // namespace fl
