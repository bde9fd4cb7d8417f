// SPDX-License-Identifier: Apache-2.0
// Lines of text through a socket, with blocking calls that have a time limit.
#pragma once

#include "client/learn/process/line_reader.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/base/limits.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl {

/// Waits until the socket can be read (POLLIN) or written (POLLOUT). False: it can't after `wait`.
[[nodiscard]] bool wait_for_socket(int socket, short events, Duration wait);

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

/// Accepts the next connection of a socket that listens. The descriptor is -1 if none came within
/// `wait`, with EAGAIN in errno, or after an error, with its number there.
[[nodiscard]] Descriptor accept_connection(int listener, Duration wait);

/// One connection. One thread sends at a time, and one receives.
class SocketLine {
 public:
  /// `peer` names the other end in errors: "the trainer".
  SocketLine(Descriptor socket, std::string peer)
      : socket_(std::move(socket)), peer_(std::move(peer)) {}

  /// Sends the line, with its end added. False: the peer has gone, or did not read until `until`.
  [[nodiscard]] bool send(std::string line, TimePoint until);
  /// The next line without its end; nothing if none is complete after `wait`. Errors: unavailable
  /// (the peer has gone), too_large (more than `bytes_max`, of which no more is kept in memory).
  [[nodiscard]] Result<std::optional<std::string>> receive(
      Duration wait, std::size_t bytes_max = limits::trainer_message_bytes_max);
  /// Ends the connection, so that calls at both ends return. Any thread.
  void shut();
  /// Names the other end.
  [[nodiscard]] const std::string& peer() const { return peer_; }
  /// The socket, to ask about the connection.
  [[nodiscard]] int number() const { return socket_.number(); }

 private:
  Descriptor socket_;
  std::string peer_;
  LineReader lines_;
};

/// Accepts connections at a path. One thread at a time.
class UnixListener {
 public:
  /// Listens at `path`, which must not exist. Errors: invalid_input (the path is too long),
  /// conflict (it exists), io.
  [[nodiscard]] static Result<UnixListener> make(const std::filesystem::path& path);
  ~UnixListener();
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;

  /// The next connection of a process of this user; null if there is none after `wait`.
  [[nodiscard]] Result<std::unique_ptr<SocketLine>> accept(Duration wait);

 private:
  UnixListener(Descriptor socket, std::filesystem::path path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  Descriptor socket_;
  std::filesystem::path path_;
};

}  // namespace fl
