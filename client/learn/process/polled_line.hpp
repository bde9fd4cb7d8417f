// SPDX-License-Identifier: Apache-2.0
// Lines of text through a socket, with calls that never wait: for whoever serves many connections
// with one thread. SocketLine is for those who wait for one. One thread at a time.
#pragma once

#include "client/learn/process/line_reader.hpp"
#include "client/learn/process/socket_line.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl {

class PolledLine {
 public:
  /// `peer` names the other end in errors: "the rank".
  PolledLine(Descriptor socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  /// The socket, to wait for.
  [[nodiscard]] int number() const { return socket_.number(); }
  /// Reads bytes that have come, at most 64 KiB. Errors: unavailable (the peer has gone).
  [[nodiscard]] Result<void> read();
  /// The next line that was read, without its end; nothing if none is complete. Errors: too_large.
  [[nodiscard]] Result<std::optional<std::string>> next(std::size_t bytes_max);
  /// Puts the line, with its end added, behind the unsent bytes.
  void queue(std::string_view line, TimePoint now);
  /// Sends what the socket takes. Errors: unavailable (the peer has gone).
  [[nodiscard]] Result<void> write(TimePoint now);
  /// Bytes that the socket has not taken yet.
  [[nodiscard]] std::size_t unsent() const { return unsent_.size() - sent_; }
  /// When the socket took bytes last, or when bytes began to wait for it.
  [[nodiscard]] TimePoint moved() const { return moved_; }
  /// Ends the connection for the peer.
  void shut();

 private:
  [[nodiscard]] Error gone() const;

  Descriptor socket_;
  std::string peer_;
  LineReader lines_;
  std::string unsent_;
  std::size_t sent_ = 0;  // The first bytes of `unsent_`, which the socket has taken.
  TimePoint moved_{};
};

}  // namespace fl
