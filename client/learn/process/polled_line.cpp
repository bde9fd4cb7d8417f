// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/polled_line.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace fl {

namespace {

constexpr std::size_t polled_bytes = 64 << 10;

bool is_for_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Error PolledLine::gone() const { return {Errc::unavailable, peer_ + " has closed its socket"}; }

Result<void> PolledLine::read() {
  std::array<char, polled_bytes> bytes;
  const ssize_t got = ::recv(socket_.number(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && is_for_later()) return {};
  if (got <= 0) return gone();
  lines_.add({bytes.data(), static_cast<std::size_t>(got)});
  return {};
}

Result<std::optional<std::string>> PolledLine::next(std::size_t bytes_max) {
  auto line = lines_.next(bytes_max);
  if (!line) return Error(Errc::too_large, fmt::format("{} {}", peer_, line.error().message()));
  return line;
}

void PolledLine::queue(std::string_view line, TimePoint now) {
  if (unsent() == 0) moved_ = now;
  unsent_ += line;
  unsent_ += '\n';
}

Result<void> PolledLine::write(TimePoint now) {
  while (unsent() > 0) {
    const ssize_t sent =
        ::send(socket_.number(), unsent_.data() + sent_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && is_for_later()) break;
    if (sent < 0) return gone();
    sent_ += static_cast<std::size_t>(sent);
    moved_ = now;
  }
  // A shorter copy frees memory. Only when half of the string is sent, so that each byte is copied
  // few times.
  if (2 * sent_ >= unsent_.size()) {
    unsent_ = unsent_.substr(sent_);
    sent_ = 0;
  }
  return {};
}

void PolledLine::shut() { ::shutdown(socket_.number(), SHUT_RDWR); }

}  // namespace fl
