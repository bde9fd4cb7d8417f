// SPDX-License-Identifier: Apache-2.0
#include "server/net/strangers.hpp"

#include "shared/base/error.hpp"

#include <algorithm>

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

/// Who ends when there are too many, of one address or of all (null): the oldest of the least
/// stage.
Strangers::Entry Strangers::oldest_of(const Address* address) {
  for (const Stage stage : {Stage::silent, Stage::waiting, Stage::shaking}) {
    const auto found = oldest([&](const Stranger& stranger) {
      return stranger.stage == stage && (address == nullptr || stranger.address == *address);
    });
    if (found != all_.end()) return found;
  }
  return all_.end();
}

void Strangers::close(Entry entry, Moves& moves) {
  moves.close.push_back(entry->first);
  leave(entry->first);
}

void Strangers::end_overdue(TimePoint now, Moves& moves) {
  while (!all_.empty() && now - all_.begin()->second.since >= limits_.time)
    close(all_.begin(), moves);
}

/// Only the newest connection's address can have become too many.
void Strangers::end_surplus(Moves& moves) {
  while (!all_.empty()) {
    const Address newest = all_.rbegin()->second.address;
    const bool is_address_full = counts_.at(newest).all > limits_.of_address;
    if (!is_address_full && all_.size() <= limits_.all) return;
    close(oldest_of(is_address_full ? &newest : nullptr), moves);
  }
}

/// Gives the places for handshakes to those that wait, oldest first. When there is none, the oldest
/// handshake that has had its turn makes room.
void Strangers::begin_waiting(TimePoint now, Moves& moves) {
  while (waiting_ > 0) {
    const bool is_full = shaking_ >= limits_.handshakes;
    const auto first =
        oldest([](const Stranger& stranger) { return stranger.stage == Stage::waiting; });
    const auto next = oldest([&](const Stranger& stranger) {
      return !is_full && stranger.stage == Stage::waiting &&
             counts_.at(stranger.address).shaking < limits_.handshakes_of_address;
    });
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

}  // namespace fl
