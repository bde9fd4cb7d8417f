// SPDX-License-Identifier: Apache-2.0
// The transfers of one run: the memory that each takes of the server's budget, and which are under
// way, for those who watch: of each client at most one up and one down. How much has come is read
// from the session's own counters, so that a chunk costs nothing more. On the engine's strand.
#pragma once

#include "server/host/session_host.hpp"
#include "server/round/bulk_budget.hpp"
#include "shared/base/async/clock.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace fl::server {

class Transfers {
 public:
  using Way = TransferWay;
  struct Size {
    std::uint64_t bytes = 0;   // The size of the whole version or update.
    std::uint64_t offset = 0;  // The bytes that were there before, where a broken transfer goes on.
    std::size_t chunk_bytes_max = 0;
  };
  struct Transfer {
    std::shared_ptr<const Peer> peer;
    std::uint32_t number = 0;  // The number of the version that is sent, or of the update's round.
    Size size;
    std::uint64_t counter_before = 0;  // The session's counter when the transfer began.
    TimePoint began_at{};

    /// Bytes of the whole that have arrived. Messages have headers too, so it may be a few less.
    [[nodiscard]] std::uint64_t done(Way way) const {
      return std::min(size.bytes, size.offset + counter(*peer, way) - counter_before);
    }
  };
  using Key = std::pair<std::string, Way>;

  /// `budget`: shared by all runs of the server.
  explicit Transfers(std::shared_ptr<BulkBudget> budget) : budget_(std::move(budget)) {}

  [[nodiscard]] const BulkBudget& budget() const { return *budget_; }

  void begin(std::shared_ptr<const Peer> peer, Way way, std::uint32_t number, Size size) {
    budget_->begin(size.chunk_bytes_max);
    const std::uint64_t before = counter(*peer, way);
    const Key key{peer->facts().name, way};
    under_way_[key] = {std::move(peer), number, size, before, Clock::now()};
  }
  /// The last byte of a client's upload is here, so nobody watches it any more. Its session holds
  /// memory until end().
  void note_arrived(const Peer& peer) { forget(peer, Way::up); }
  /// A session's transfer with chunks of at most `chunk_bytes_max` bytes has ended.
  void end(const Peer& peer, Way way, std::size_t chunk_bytes_max) {
    budget_->end(chunk_bytes_max);
    forget(peer, way);
  }

  /// The client's transfer; null if none is under way.
  [[nodiscard]] const Transfer* find(const std::string& client, Way way) const {
    const auto found = under_way_.find({client, way});
    return found != under_way_.end() ? &found->second : nullptr;
  }
  [[nodiscard]] const std::map<Key, Transfer>& all() const { return under_way_; }

 private:
  static std::uint64_t counter(const Peer& peer, Way way) {
    return way == Way::up ? peer.bytes_up() : peer.bytes_down();
  }
  /// Does nothing if another session's transfer has replaced this one.
  void forget(const Peer& peer, Way way) {
    const auto found = under_way_.find({peer.facts().name, way});
    if (found != under_way_.end() && found->second.peer.get() == &peer) under_way_.erase(found);
  }

  std::shared_ptr<BulkBudget> budget_;
  std::map<Key, Transfer> under_way_;
};

}  // namespace fl::server
