// SPDX-License-Identifier: Apache-2.0
// Link: one connection between a server and a client, as the server's sessions and the client's
// agent use it. It carries messages in order in both directions until it ends. Implementations are
// WsLink (TLS WebSocket), InProcessLink (fl-sim) and MemoryLink (tests).
//
// Call all members on the link's executor(), a strand that its user shares. One receive() and any
// number of send() calls may be pending at the same time.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/base/limits.hpp"
#include "shared/wire/message.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace fl {

class Link {
 public:
  virtual ~Link() = default;

  /// Waits for the next message. The end of the link is an error: `unavailable` (the peer left, the
  /// connection broke or was silent for too long), or `protocol` or `too_large` (the peer sent
  /// something that the protocol forbids).
  [[nodiscard]] virtual Awaitable<Result<Message>> receive() = 0;

  /// Sends a message. Returns when the operating system has taken it, so a sender of bulk data is
  /// slowed down to the speed of the connection. A message without payload overtakes waiting
  /// messages with payload, never the reverse. `unavailable`: the link has ended. `too_large`: the
  /// message's header exceeds its limit, and nothing was sent.
  [[nodiscard]] virtual Awaitable<Result<void>> send(Message message) = 0;

  /// Sets how large messages the peer may send from now on; a larger one ends the link. (Links
  /// within a program need no limit.)
  virtual void expect_messages_of([[maybe_unused]] std::size_t bytes_max) {}

  /// Sets how many bytes of payload the peer may send from now on; this replaces what was expected
  /// before. A link that limits what it receives lets the peer send no more than that.
  virtual void expect_bulk([[maybe_unused]] std::uint64_t payload_bytes) {}

  /// The payload of the next message for which the peer has room now, at least
  /// limits::chunk_bytes_min. A larger one may be sent: then the peer gets more than it has agreed
  /// to.
  [[nodiscard]] virtual std::size_t payload_room() const { return limits::chunk_bytes_max; }

  /// Ends the link: tells the peer, within limits::close_max, then ends pending calls with an
  /// error. Returns immediately. Later calls do nothing.
  virtual void close() = 0;

  [[nodiscard]] virtual net::any_io_executor executor() const = 0;

  /// Bytes of complete messages, including our headers but not those of WebSocket, TLS and TCP.
  /// These two: any thread.
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;
  /// bytes_received() and the bytes that have come of a message that is not complete yet.
  [[nodiscard]] virtual std::uint64_t bytes_arrived() const { return bytes_received(); }

  /// The peer for logs, for example "203.0.113.7:51234".
  [[nodiscard]] virtual const std::string& remote() const = 0;

  /// When the certificate that the peer has shown ends, in Unix seconds; 0: it has shown none.
  [[nodiscard]] virtual double certificate_ends_at() const { return 0; }
};

}  // namespace fl
