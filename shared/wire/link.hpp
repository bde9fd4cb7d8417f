// One connection between a server and a client, as the round engine's sessions and the client's
// agent see it: messages in order, both ways, until it ends. WsLink is the real one (TLS
// WebSocket), MemoryLink the simulated one.
//
// All members are called on the link's own strand (executor()), which its user shares; the methods
// that return awaitables may be pending side by side: one receive and any number of sends.
#pragma once

#include "shared/base/async/asio.hpp"
#include "shared/wire/message.hpp"

#include <cstdint>
#include <string>

namespace fl {

class Link {
 public:
  virtual ~Link() = default;

  /// The next message. An end of any kind is an error: `unavailable` (the peer left, the line broke
  /// or fell silent) or `protocol`, `too_large` (the peer sent what no peer may).
  [[nodiscard]] virtual Awaitable<Result<Message>> receive() = 0;

  /// Returns when the message is handed to the operating system, so that a sender of bulk waits for
  /// the line. Messages without payload overtake waiting ones with payload, and never the reverse.
  /// `unavailable` when the link is down; `too_large` never (FL_ASSERT: it is our own message).
  [[nodiscard]] virtual Awaitable<Result<void>> send(Message message) = 0;

  /// Ends the link: tells the peer, within limits::close_max, then fails what is pending. Returns
  /// at once; later calls do nothing.
  virtual void close() = 0;

  [[nodiscard]] virtual net::any_io_executor executor() const = 0;

  /// WebSocket payload bytes, our own headers included, of complete messages. Any thread.
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;

  /// "203.0.113.7:51234", for logs.
  [[nodiscard]] virtual const std::string& remote() const = 0;
};

}  // namespace fl
