// SPDX-License-Identifier: Apache-2.0
// Strangers are connections that have not authenticated yet. This class decides which of them may
// go on. A connection costs a file until its first byte arrives; then it waits for one of a few
// places for handshakes, which cost memory and computing. When there are too many strangers, the
// address with the most of them loses the oldest that has sent nothing. So strangers can't keep
// members out, and take no place that a member needs.
//
// The class only decides; whoever accepts has the sockets, and calls it from one strand or under
// one mutex. A port without handshakes does not call speak(): then the oldest connection ends.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

struct sockaddr;

namespace fl {

class Strangers {
 public:
  using Id = std::uint64_t;
  using Address = std::uint64_t;  // Stands for a machine, or for the network that it may have.

  struct Limits {
    std::size_t all = limits::strangers_max;
    std::size_t of_address = limits::strangers_of_address_max;
    std::size_t handshakes = limits::handshakes_max;
    std::size_t handshakes_of_address = limits::handshakes_of_address_max;
    Duration turn = limits::handshake_turn;  // A longer handshake ends if another waits.
    Duration time = limits::handshake_max;   // The longest time until it has authenticated.
  };
  /// What the listener does now: it closes these connections, which are forgotten already, and
  /// begins the handshakes of those.
  struct Moves {
    std::vector<Id> close;
    std::vector<Id> begin;
  };

  explicit Strangers(const Limits& limits) : limits_(limits) {}

  /// A connection was accepted.
  [[nodiscard]] Id enter(Address address, TimePoint now);
  /// The first byte of this connection has come.
  void speak(Id id);
  /// This connection has authenticated, or is gone. Nothing happens if it was forgotten.
  void leave(Id id);
  /// What is to be done now; often nothing. Call it after each change, and every
  /// limits::strangers_look.
  [[nodiscard]] Moves next(TimePoint now);

  [[nodiscard]] std::size_t count() const { return all_.size(); }

 private:
  enum class Stage { silent, waiting, shaking };
  struct Stranger {
    Address address = 0;
    TimePoint since;
    Stage stage = Stage::silent;
    TimePoint began{};  // While shaking.
  };
  struct Counts {
    std::size_t all = 0;
    std::size_t shaking = 0;
  };
  using Entry = std::map<Id, Stranger>::iterator;

  template <class Claim>
  [[nodiscard]] Entry oldest(Claim claim);
  [[nodiscard]] Entry surplus_of(Address address);
  [[nodiscard]] Entry next_to_begin();
  void close(Entry entry, Moves& moves);
  void end_overdue(TimePoint now, Moves& moves);
  void end_surplus(Moves& moves);
  void begin_waiting(TimePoint now, Moves& moves);

  Limits limits_;
  Id last_ = 0;
  std::map<Id, Stranger> all_;  // In the order in which they came.
  std::unordered_map<Address, Counts> counts_;
  std::size_t shaking_ = 0;
  std::size_t waiting_ = 0;
};

/// One machine counts as an IPv4 address, or as an IPv6 network of 64 bits; all other sockets (of
/// this machine) as 0.
[[nodiscard]] Strangers::Address stranger_address(const sockaddr& address);

}  // namespace fl
