// SPDX-License-Identifier: Apache-2.0
#include "shared/net/peer_credit.hpp"

#include <algorithm>
#include <utility>

namespace fl {

namespace {

/// The credit that a peer gets in one turn: enough for one chunk. So peers take turns chunk by
/// chunk.
constexpr auto step = static_cast<std::int64_t>(limits::chunk_bytes_min);
static_assert(limits::traffic_ahead_bytes_min > limits::chunk_bytes_min);

}  // namespace

void PeerCredit::expect(std::uint64_t payload_bytes) {
  expected_ = payload_bytes;
  measured_from_ = never;
}

void PeerCredit::receive(std::uint64_t bytes, std::uint64_t payload_bytes) {
  pass(payload_bytes);
  ahead_ -= static_cast<std::int64_t>(bytes);
  const TimePoint now = Clock::now();
  measured_ += bytes;
  // The first message starts the measurement, so that the round-trip time does not count.
  if (measured_from_ != never && now < measured_from_ + limits::traffic_measured) return;
  if (measured_from_ != never) {
    const double pace = static_cast<double>(measured_) / seconds(now - measured_from_);
    const double ahead = pace * seconds(limits::traffic_ahead);
    // One chunk more: a chunk counts when all of it has come.
    ahead_max_ = std::max(limits::traffic_ahead_bytes_min,
                          static_cast<std::uint64_t>(ahead) + limits::chunk_bytes_min);
  }
  measured_ = 0;
  measured_from_ = now;
}

TimePoint PeerCredit::advance(Governor& governor) {
  for (;;) {
    if (waiting_ > 0) {
      if (const auto epoch = governor.epoch(); std::exchange(epoch_, epoch) != epoch)
        turn_at_ = governor.reserve(waiting_);
      if (turn_at_ > Clock::now()) return turn_at_;
      granted_ += std::exchange(waiting_, 0);
    }
    const std::int64_t more = static_cast<std::int64_t>(std::min(ahead_max_, expected_)) - ahead_;
    // A small part of a step waits for more, unless it is the last one. The peer has credit then.
    const bool is_part = more < step && expected_ > ahead_max_;
    if (more <= 0 || is_part) return never;
    waiting_ = static_cast<std::uint64_t>(std::min(more, step));
    ahead_ += static_cast<std::int64_t>(waiting_);
    epoch_ = governor.epoch();
    turn_at_ = governor.reserve(waiting_);
  }
}

std::uint64_t PeerCredit::take() { return std::exchange(granted_, 0); }

std::uint64_t PeerCredit::unpaid() const {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(-ahead_, 0));
}

}  // namespace fl
