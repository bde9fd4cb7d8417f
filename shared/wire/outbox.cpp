// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/outbox.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

Result<void> Outbox::push(std::shared_ptr<Outgoing> message) {
  auto& queue = message->payload.empty() ? control_ : bulk_;
  if (queue.size() >= limits::outbox_messages_max)
    return Error(Errc::unavailable,
                 fmt::format("the peer does not read: {} messages wait to be sent", queue.size()));
  queue.push_back(std::move(message));
  return {};
}

std::optional<TimePoint> Outbox::wait() {
  FL_ASSERT(!empty());
  if (!control_.empty()) return std::nullopt;
  if (credit_ && *credit_ <= 0) return never;
  if (!limit_ || (!limit_->is_limited() && !has_turn_)) return std::nullopt;
  if (!std::exchange(has_turn_, true)) turns_.add(bulk_.front()->bytes());
  const TimePoint turn = turns_.advance(*limit_);
  if (turn == never) return std::nullopt;
  // The turn may come earlier than was planned: SIGHUP changes limits.
  return std::min(turn, Clock::now() + Duration(limits::traffic_look_every));
}

std::shared_ptr<Outgoing> Outbox::pop() {
  FL_ASSERT(!empty());
  const bool is_bulk = control_.empty();
  FL_ASSERT(!is_bulk || !credit_ || *credit_ > 0);
  auto& queue = is_bulk ? bulk_ : control_;
  auto message = std::move(queue.front());
  queue.pop_front();
  if (is_bulk) has_turn_ = false;
  return message;
}

void Outbox::count_sent(const Outgoing& message, std::uint64_t bytes) {
  if (message.payload.empty()) {
    if (limit_) limit_->charge(bytes);
  } else if (credit_) {
    *credit_ -= static_cast<std::int64_t>(bytes);
  }
}

void Outbox::take_credit(std::uint64_t bytes) {
  // Nobody needs more credit than this; and the sum does not overflow.
  constexpr std::uint64_t credit_max = 1ull << 62;
  const std::int64_t sum = credit_.value_or(0);
  const auto more = static_cast<std::int64_t>(std::min(bytes, credit_max));
  credit_ = std::min(sum, static_cast<std::int64_t>(credit_max) - more) + more;
}

std::size_t Outbox::payload_room() const {
  constexpr auto most = static_cast<std::int64_t>(limits::chunk_bytes_max);
  constexpr auto least = static_cast<std::int64_t>(limits::chunk_bytes_min);
  return static_cast<std::size_t>(std::clamp(credit_.value_or(most), least, most));
}

}  // namespace fl
