// SPDX-License-Identifier: Apache-2.0
// The bench: clients that are not asked for a while, because they were asked several times in a row
// and no update of theirs counted. Each such time is a miss. On the engine's strand.
#pragma once

#include "server/history/records.hpp"
#include "server/host/peer.hpp"
#include "shared/base/async/clock.hpp"

#include <map>
#include <string>

namespace fl::server {

class Bench {
 public:
  /// Sets the misses that the history has of clients (Rounds::misses), at a start.
  void restore(const std::map<std::string, Misses>& misses);
  /// A client was asked, and after the time `lost` it has no update that counts. Returns for how
  /// long it is not asked from now on: zero, if it has missed fewer than limits::misses_max times.
  Duration note_miss(const std::string& client, Duration lost);
  /// An update of the client counts: it has no misses any more.
  void clear(const std::string& client) { clients_.erase(client); }
  /// An operator has pardoned the client at this time: its misses before that are forgotten.
  /// Returns false if it had none, or has missed since.
  bool pardon(const std::string& client, TimePoint at);
  /// The program of a client began so long ago (zero: it is not known). If that was after its last
  /// miss, its user may have mended it: its misses are forgotten, but only limits::fresh_starts_max
  /// times between two updates that count, since a program may crash again and again. Returns false
  /// if nothing was forgotten.
  bool forgive_fresh_start(const std::string& client, Duration uptime);

  /// How many times in a row the client has missed.
  [[nodiscard]] int misses_of(const std::string& client) const;
  /// Until when the client is not asked; if that is past, it may be asked.
  [[nodiscard]] TimePoint until(const std::string& client) const;
  /// Why the client is not asked, until when, and what ends that; "" if it may be asked.
  [[nodiscard]] std::string why(const std::string& client) const;
  /// Tells a client why it is not asked, if it is not and it shows notices.
  void tell(Peer& peer) const;

 private:
  struct Client {
    int misses = 0;         // Misses in a row.
    TimePoint missed_at{};  // The last one of these.
    TimePoint until{};
    int fresh_starts = 0;  // How many times forgive_fresh_start() has forgotten misses.
  };

  static bool forget_misses(Client& client, TimePoint before);

  std::map<std::string, Client> clients_;
};

}  // namespace fl::server
