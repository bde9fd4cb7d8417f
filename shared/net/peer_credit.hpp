// SPDX-License-Identifier: Apache-2.0
// PeerCredit: how much the peer of one connection may send while a Governor limits what we receive.
// All credit is reserved from the governor before the peer gets it. So the limit holds for all
// connections together, however many there are, and whenever their peers use their credit.
//
// A peer gets credit only for what is expected from it, and so much ahead of what has come as it
// has shown to need: what it sent lately in limits::traffic_ahead. So a slow peer does not hold
// credit that others could use, and a fast one does not wait for the way there and back. Credit
// that a peer has not used counts for what is expected next. What a dead connection has left is
// lost: its bytes may be on their way. Any thread, one at a time.
#pragma once

#include "shared/base/limits.hpp"
#include "shared/net/governor.hpp"

#include <algorithm>
#include <cstdint>

namespace fl {

class PeerCredit {
 public:
  /// Sets how many bytes of payload the peer may send from now on: this replaces what was expected.
  void expect(std::uint64_t payload_bytes);
  /// Notes payload that has come before the peer needed credit.
  void pass(std::uint64_t payload_bytes) { expected_ -= std::min(expected_, payload_bytes); }
  /// Notes a message that has come: all its bytes, and those of its payload.
  void receive(std::uint64_t bytes, std::uint64_t payload_bytes);

  /// Reserves the credit that the peer should have next. Returns when to call again; `never`: not
  /// before the next expect() or receive().
  [[nodiscard]] TimePoint advance(Governor& governor);
  /// The credit that the peer gets now; 0: none.
  [[nodiscard]] std::uint64_t take();
  /// Bytes that have come without a reservation, because the peer has sent more than its credit.
  [[nodiscard]] std::uint64_t unpaid() const;
  /// How far the peer may be ahead.
  [[nodiscard]] std::uint64_t ahead_max() const { return ahead_max_; }

 private:
  std::uint64_t expected_ = 0;  // Bytes of payload that are still to come.
  std::int64_t ahead_ = 0;      // Reserved bytes minus received bytes.
  std::uint64_t ahead_max_ = limits::traffic_ahead_bytes_min;
  std::uint64_t waiting_ = 0;  // Reserved, from `turn_at_` on.
  std::uint64_t granted_ = 0;  // Credit whose turn has come, and that is not taken.
  TimePoint turn_at_{};
  std::uint64_t epoch_ = 0;     // The governor's epoch() when that was reserved.
  std::uint64_t measured_ = 0;  // Bytes that have come since measured_from_.
  TimePoint measured_from_ = never;
};

}  // namespace fl
