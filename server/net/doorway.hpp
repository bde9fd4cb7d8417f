// SPDX-License-Identifier: Apache-2.0
// A port of the server, up to the moment at which a connection has shown who it is. It accepts at a
// pace, keeps strangers within their places (shared/net/strangers.hpp), and writes few lines into
// the log, however many connections come. A connection is a socket, and at a port with TLS the
// bytes that have come, until it has greeted (Opening) and there is a place for it. The owner
// begins its conversation then, and says when it is no stranger any more. On the acceptor's strand,
// unless a function says otherwise.
#pragma once

#include "server/net/client_hello.hpp"
#include "shared/base/async/asio.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/mailbox.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/base/log.hpp"
#include "shared/net/accept_pace.hpp"
#include "shared/net/address_text.hpp"
#include "shared/net/strangers.hpp"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

namespace fl::server {

/// How the conversations of a port begin, and so what a connection must have sent before it gets a
/// place.
enum class Opening {
  any_byte,      // Nothing is read before the conversation begins.
  client_hello,  // A whole TLS ClientHello.
};

template <class Protocol>
class Doorway {
 public:
  using Acceptor = net::basic_socket_acceptor<Protocol>;
  using Socket = typename Protocol::socket;
  using Id = Strangers::Id;
  /// Ends a conversation. Called on the acceptor's strand.
  using End = std::function<void()>;
  /// Begins a conversation on the socket's executor, and returns what ends it. `first`: what was
  /// read already.
  using Begin = std::function<End(Socket socket, std::string first, Id id)>;

  /// `name` begins the lines of the log: "admin pages: ". `acceptor` is on a strand of its own and
  /// must outlive this; `io` must stop before this is destroyed.
  Doorway(net::io_context& io, Acceptor& acceptor, std::string name,
          const Strangers::Limits& limits, Opening opening, Begin begin)
      : io_(io),
        acceptor_(acceptor),
        name_(std::move(name)),
        opening_(opening),
        strangers_(limits),
        arrived_(acceptor.get_executor()),
        begin_(std::move(begin)) {}

  void start() {
    net::co_spawn(acceptor_.get_executor(), accept(), rethrow);
    net::co_spawn(acceptor_.get_executor(), watch_times(), rethrow);
  }
  /// Accepts no more connections; those that exist go on. Any thread.
  void close() {
    is_closed_ = true;
    net::post(acceptor_.get_executor(), [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      arrived_.notify();
    });
  }
  /// The connection is no stranger's any more, or is gone. `member`: the member it has shown to be,
  /// or has become; empty: none. From any strand.
  void leave(Id id, std::string member = {}) {
    net::post(acceptor_.get_executor(), [this, id, member = std::move(member)] {
      member.empty() ? strangers_.leave(id) : strangers_.admit(id, member, Clock::now());
      if (connections_.erase(id) > 0) make_moves();
    });
  }
  /// Writes a line into the log about what a peer did: of each kind a few in a minute. Any thread.
  void note(LogLevel level, const std::string& kind, const std::string& text) {
    if (lines_.passes(kind)) log_at(level, "{}{}", name_, text);
  }

 private:
  /// The pause after accept() failed for lack of file descriptors.
  static constexpr auto accept_pause = std::chrono::milliseconds(100);

  /// A connection before its conversation begins.
  struct Plain {
    Socket socket;
    std::string first;  // The bytes of the ClientHello that have arrived.
  };
  using Connection = std::variant<Plain, End>;

  Awaitable<void> accept() {
    AcceptPace pace;
    while (!is_closed_) {
      net::any_io_executor strand = net::make_strand(io_);
      auto [ec, socket] = co_await acceptor_.async_accept(strand, as_result);
      if (is_closed_) co_return;
      if (ec) {
        // Most likely there are no file descriptors left. Connections that wait in the backlog are
        // served when some are free again.
        note(LogLevel::warn, "connections that could not be accepted",
             "can't accept a connection: " + ec.message());
        co_await sleep_for(accept_pause);
        continue;
      }
      take(std::move(socket));
      const TimePoint now = Clock::now();
      if (const TimePoint due = pace.next(now); due > now) co_await sleep_until(due);
    }
  }

  Awaitable<void> watch_times() {
    while (!is_closed_) {
      if (strangers_.count() == 0) co_await arrived_.wait(Clock::now() + limits::lines_look);
      if (strangers_.count() > 0) co_await sleep_for(limits::strangers_look);
      make_moves();
      for (const auto& left_out : lines_.take_left_out())
        log_warn("{}{}", name_, to_string(left_out));
    }
  }

  void take(Socket socket) {
    boost::system::error_code ec;
    const auto peer = socket.remote_endpoint(ec);
    if (ec) return;  // The connection has left already.
    const auto id = strangers_.enter(stranger_address(*peer.data()), Clock::now());
    auto& plain = std::get<Plain>(
        connections_
            .emplace(id, Connection(std::in_place_type<Plain>, Plain{std::move(socket), {}}))
            .first->second);
    listen_to(plain, id);
    make_moves();
    arrived_.notify();
  }

  void listen_to(Plain& plain, Id id) {
    auto heard = [this, id](const boost::system::error_code& failure) { hear(id, failure); };
    plain.socket.async_wait(Socket::wait_read,
                            net::bind_executor(acceptor_.get_executor(), std::move(heard)));
  }

  void hear(Id id, const boost::system::error_code& ec) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;  // The connection was closed.
    auto& plain = std::get<Plain>(found->second);
    switch (ec ? HelloStage::none : look_at(plain)) {
      case HelloStage::partial: listen_to(plain, id); return;
      case HelloStage::whole: strangers_.greet(id, round_trip(plain.socket)); break;
      case HelloStage::none: strangers_.leave(id); connections_.erase(found);
    }
    make_moves();
  }

  HelloStage look_at(Plain& plain) {
    if (opening_ == Opening::any_byte)
      return is_at_end(plain.socket) ? HelloStage::none : HelloStage::whole;
    if (!read_what_came(plain.socket, plain.first, limits::client_hello_bytes_max))
      return HelloStage::none;
    const HelloStage stage = look_at_hello(bytes_of(std::string_view(plain.first)));
    if (stage == HelloStage::none)
      note(LogLevel::info, "connections that do not begin with a TLS handshake",
           fmt::format("{}: this is no TLS handshake: clients connect with fl-client",
                       host_of(plain.socket)));
    return stage;
  }

  void make_moves() {
    const auto moves = strangers_.next(Clock::now());
    for (const auto id : moves.close) {
      const auto found = connections_.find(id);
      if (const End* const end = std::get_if<End>(&found->second)) (*end)();
      connections_.erase(found);
    }
    if (!moves.close.empty())
      note(LogLevel::info, "connections that were ended before they authenticated",
           fmt::format(
               "{} connections were ended before they authenticated, as they were too slow or too "
               "many; {} are open",
               moves.close.size(), strangers_.count()));
    for (const auto id : moves.begin) {
      Connection& connection = connections_.at(id);
      Plain plain = std::move(std::get<Plain>(connection));
      connection = begin_(std::move(plain.socket), std::move(plain.first), id);
    }
  }

  /// Whether the peer has closed without a byte.
  static bool is_at_end(Socket& socket) {
    char byte = 0;
    return ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

  /// Appends the bytes that have come, as long as `text` has fewer than `bytes_max`. Returns false
  /// if nothing more will come.
  static bool read_what_came(Socket& socket, std::string& text, std::size_t bytes_max) {
    std::array<char, 2048> room;
    while (text.size() < bytes_max) {
      const ssize_t got = ::recv(socket.native_handle(), room.data(), room.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      text.append(room.data(), static_cast<std::size_t>(got));
    }
    return true;
  }

  /// The round trip that the system has measured since the connection was opened.
  static Duration round_trip(Socket& socket) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
    return std::chrono::microseconds(info.tcpi_rtt);
  }

  static std::string host_of(const Socket& socket) {
    boost::system::error_code gone;
    const auto peer = socket.remote_endpoint(gone);
    return gone ? "an address that has gone" : host_text(*peer.data());
  }

  net::io_context& io_;
  Acceptor& acceptor_;
  const std::string name_;
  const Opening opening_;
  Strangers strangers_;
  Signal arrived_;  // There are strangers to watch, or the port is closed.
  Begin begin_;
  std::unordered_map<Id, Connection> connections_;  // Strangers' connections.
  LineLimit lines_;
  std::atomic<bool> is_closed_ = false;
};

}  // namespace fl::server
