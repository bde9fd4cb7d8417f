// SPDX-License-Identifier: Apache-2.0
// Strangers are connections that have not authenticated yet. This class decides which of them may
// go on. A connection costs a file until it has greeted: its whole ClientHello is there, or its
// first byte at a port without TLS. Then it waits for one of a few places for handshakes, which
// cost memory and computing. Addresses are served in turn: the one with the fewest handshakes under
// way is next, and of its connections, as of addresses that were not served yet, the newest and the
// oldest by turns. So connections that are left waiting do not delay new ones, and new ones do not
// starve those that wait. Some places are only for addresses where members were lately. An address
// whose handshakes lead nowhere gets few more (address_book.hpp). When there are too many
// strangers, one of the address with the most ends; among equals a silent one, and the oldest. So
// strangers from some hundred addresses can't keep members out, nor those from any number of them a
// member that was at its address lately.
//
// The class only decides; whoever accepts has the sockets, and calls it from one strand or under
// one mutex. A port without handshakes does not call greet(): then the oldest connection ends.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"
#include "shared/net/address_book.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

struct sockaddr;

namespace fl {

class Strangers {
 public:
  using Id = std::uint64_t;

  struct Limits {
    std::size_t all = limits::strangers_max;
    std::size_t of_address = limits::strangers_of_address_max;
    std::size_t handshakes = limits::handshakes_max;
    std::size_t handshakes_of_address = limits::handshakes_of_address_max;
    /// This many of `handshakes` are kept for addresses where members were lately.
    std::size_t handshakes_reserved = limits::handshakes_reserved;
    Duration turn = limits::handshake_turn;  // A longer handshake ends if another waits.
    /// The longest turn, over a connection with long round trips.
    Duration turn_max = limits::handshake_turn_max;
    /// The longest time until a connection has authenticated.
    Duration time = limits::handshake_max;
    AddressBook::Limits addresses{};
  };
  /// What the listener must do now: close these connections, which are forgotten already, and begin
  /// the handshakes of those.
  struct Moves {
    std::vector<Id> close;
    std::vector<Id> begin;
  };

  explicit Strangers(const Limits& limits) : limits_(limits), book_(limits.addresses) {}

  /// Adds a connection that was accepted.
  [[nodiscard]] Id enter(Address address, TimePoint now);
  /// The whole ClientHello of this connection has come, or the first byte at a port without TLS.
  /// `round_trip`: the connection's.
  void greet(Id id, Duration round_trip);
  /// This connection has authenticated as this member, or has enrolled it.
  void admit(Id id, const std::string& member, TimePoint now);
  /// This connection is gone. Nothing happens if it was forgotten.
  void leave(Id id);
  /// The moves that are due now; often none. Call it after each change, and every
  /// limits::strangers_look.
  [[nodiscard]] Moves next(TimePoint now);

  [[nodiscard]] std::size_t count() const { return all_.size(); }

 private:
  enum class Stage { silent, waiting, shaking };
  struct Stranger {
    Address address = 0;
    TimePoint since;
    Stage stage = Stage::silent;
    Duration turn{};
    TimePoint began{};           // When its handshake began; set only in Stage::shaking.
    bool is_from_known = false;  // Whether a member had been at its address when it began.
  };
  /// The connections of an address, by stage and in the order in which they came.
  struct Party {
    [[nodiscard]] std::set<Id>& at(Stage stage) { return ids[static_cast<std::size_t>(stage)]; }
    [[nodiscard]] std::size_t count() const {
      return ids[0].size() + ids[1].size() + ids[2].size();
    }
    /// The waiting connection to serve next: the newest and the oldest by turns.
    [[nodiscard]] Id next() {
      const auto& waiting = at(Stage::waiting);
      return is_oldest_next ? *waiting.begin() : *waiting.rbegin();
    }
    std::array<std::set<Id>, 3> ids;
    std::uint64_t served = 0;  // When the address was last served: a number that grows.
    bool is_oldest_next = false;
  };
  using Parties = std::unordered_map<Address, Party>;

  void move_to(Id id, Stage stage);
  void close(Id id, Moves& moves);
  void end_overdue(TimePoint now, Moves& moves);
  [[nodiscard]] Id surplus_of(Party& party);
  [[nodiscard]] Id surplus_of_all(TimePoint now);
  void end_surplus(TimePoint now, Moves& moves);
  void begin_waiting(TimePoint now, Moves& moves);
  void begin(Id id, TimePoint now, Moves& moves);
  [[nodiscard]] bool is_full_for(Address address, TimePoint now) const;
  [[nodiscard]] std::optional<Id> slow_one(Address waiting, TimePoint now);

  Limits limits_;
  AddressBook book_;
  Id last_ = 0;
  std::map<Id, Stranger> all_;  // All connections, in the order in which they came.
  Parties parties_;             // Addresses with at least one connection.
  std::size_t shaking_ = 0;
  std::size_t shaking_unknown_ = 0;  // Handshakes from addresses where no member was lately.
  std::size_t waiting_ = 0;
  std::uint64_t served_ = 0;
  bool is_newest_address_next_ = false;  // Among addresses that have not been served yet.
};

/// One machine counts as an IPv4 address, or as an IPv6 network of 64 bits; all other sockets (of
/// this machine) as 0.
[[nodiscard]] Address stranger_address(const sockaddr& address);

}  // namespace fl
