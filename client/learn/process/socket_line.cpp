// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/socket_line.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

namespace fl {

namespace {

constexpr std::size_t read_bytes = 64 << 10;

/// Whether the process at the other end is of this user, or of root.
bool is_ours(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

bool wait_for_socket(int socket, short events, Duration wait) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::max(wait, Duration::zero()));
  pollfd ready{.fd = socket, .events = events, .revents = 0};
  return poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000))) > 0;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Descriptor accept_connection(int listener, Duration wait) {
  if (wait_for_socket(listener, POLLIN, wait))
    return Descriptor(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  errno = EAGAIN;
  return Descriptor();
}

bool SocketLine::send(std::string line, TimePoint until) {
  line += '\n';
  std::string_view left = line;
  while (!left.empty()) {
    if (!wait_for_socket(socket_.number(), POLLOUT, until - Clock::now())) return false;
    const ssize_t sent =
        ::send(socket_.number(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) return false;
    left.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

Result<std::optional<std::string>> SocketLine::receive(Duration wait, std::size_t bytes_max) {
  const TimePoint until = Clock::now() + wait;
  for (;;) {
    auto line = lines_.next(bytes_max);
    if (!line) return Error(Errc::too_large, fmt::format("{} {}", peer_, line.error().message()));
    if (*line || !wait_for_socket(socket_.number(), POLLIN, until - Clock::now())) return line;
    // One byte more than the limit tells that the line is too long.
    std::array<char, read_bytes> bytes;
    const std::size_t room = std::min(read_bytes, bytes_max + 1 - lines_.size());
    const ssize_t got = recv(socket_.number(), bytes.data(), room, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error(Errc::unavailable, peer_ + " has closed its socket");
    lines_.add({bytes.data(), static_cast<std::size_t>(got)});
  }
}

void SocketLine::shut() { ::shutdown(socket_.number(), SHUT_RDWR); }

Result<UnixListener> UnixListener::make(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = path.string();
  if (text.size() >= sizeof address.sun_path) {
    return Error(Errc::invalid_input, fmt::format("{}: the path of a socket has at most {} bytes",
                                                  text, sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  Descriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.number() < 0) return errno_error("can't make a socket");
  if (bind(made.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EADDRINUSE)
      return Error(Errc::conflict, fmt::format("{} exists already: remove it", text));
    return errno_error(text);
  }
  UnixListener listener(std::move(made), path);
  if (listen(listener.socket_.number(), 4) != 0) return errno_error(text);
  return listener;
}

UnixListener::~UnixListener() {
  if (socket_.number() >= 0) unlink(path_.c_str());
}

Result<std::unique_ptr<SocketLine>> UnixListener::accept(Duration wait) {
  Descriptor made = accept_connection(socket_.number(), wait);
  if (made.number() < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EMFILE ||
        errno == ENFILE)
      return std::unique_ptr<SocketLine>();
    return errno_error(path_.string());
  }
  if (!is_ours(made.number())) {
    log_warn("{}: a process of another user has connected; its connection is closed",
             path_.string());
    return std::unique_ptr<SocketLine>();
  }
  return std::make_unique<SocketLine>(std::move(made), "the trainer");
}

}  // namespace fl
