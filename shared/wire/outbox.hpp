// SPDX-License-Identifier: Apache-2.0
// Outbox: the messages of one link that wait to be sent, and which of them may go now. Control
// messages go before messages with payload (bulk). Bulk waits for its turn at our own limit
// (Governor) and for the peer's credit (wire::Credit). The link's strand.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/net/governor.hpp"
#include "shared/wire/message.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fl {

/// A message on its way to the socket.
struct Outgoing {
  Outgoing(std::string head, Payload body) : header(std::move(head)), payload(std::move(body)) {}
  [[nodiscard]] std::uint64_t bytes() const { return header.size() + payload.bytes().size(); }
  std::string header;  // As frame_header() makes it.
  Payload payload;
  bool is_written = false;
};

class Outbox {
 public:
  /// `limit` may be null: no limit, for ever.
  explicit Outbox(std::shared_ptr<Governor> limit) : limit_(std::move(limit)) {}

  /// Errors: unavailable, if limits::outbox_messages_max messages of this kind wait already.
  [[nodiscard]] Result<void> push(std::shared_ptr<Outgoing> message);
  [[nodiscard]] bool empty() const { return control_.empty() && bulk_.empty(); }
  /// When to ask again whether the first message may go; nullopt: it may go now. `never`: after
  /// take_credit(). A control message that comes meanwhile may go at once. Not if empty().
  [[nodiscard]] std::optional<TimePoint> wait();
  /// Takes out the first message, after wait() has said that it may go.
  [[nodiscard]] std::shared_ptr<Outgoing> pop();
  /// Counts a message that was sent, as so many bytes.
  void count_sent(const Outgoing& message, std::uint64_t bytes);

  /// The peer lets us send so many bytes more. From the first time on it must.
  void take_credit(std::uint64_t bytes);
  /// The payload of the next message for which the peer has room (Link::payload_room).
  [[nodiscard]] std::size_t payload_room() const;

 private:
  std::deque<std::shared_ptr<Outgoing>> control_;
  std::deque<std::shared_ptr<Outgoing>> bulk_;
  std::shared_ptr<Governor> limit_;
  Turns turns_;                         // The turns of the messages with payload.
  bool has_turn_ = false;               // The bytes of bulk_.front() are among those of `turns_`.
  std::optional<std::int64_t> credit_;  // The bytes that the peer lets us send; none: no limit.
};

}  // namespace fl
