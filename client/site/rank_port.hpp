// SPDX-License-Identifier: Apache-2.0
// RankPort: the port of a site at which its ranks arrive, and the connections to all of them. One
// thread serves them and waits for none: it reads what has come, sends what a socket takes, and
// keeps the rest until the socket takes more. A rank that is silent, or that does not read, is lost
// and holds up nobody. SiteHub says what the ranks' messages mean.
#pragma once

#include "client/learn/process/socket_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "client/site/site_member.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/net/accept_pace.hpp"
#include "shared/net/strangers.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace fl::site {

/// Any thread.
class RankPort {
 public:
  using Id = Strangers::Id;  // The number of a connection; 0 is none.
  /// A connection whose rank has proven that it knows the secret, and has said who it is.
  struct Peer {
    Id id = 0;
    SiteMember member;
  };
  /// Called on the port's thread, which must not wait. They may call send() and end().
  struct Events {
    std::function<Result<void>(const Peer&)> entered;  // An error refuses the rank.
    /// An error ends the connection.
    std::function<Result<void>(const Peer&, const nlohmann::json&)> said;
    std::function<void(const Peer&, const Error& reason)> left;  // Once for each that entered.
  };
  struct Options {
    std::string host;        // Where to listen; "" for all addresses.
    std::uint16_t port = 0;  // 0: any.
    std::string secret;
    int size = 1;                               // Ranks of the site.
    Duration silence = limits::rank_silence;    // A rank that is silent for so long is lost.
    Duration greeting = limits::rank_greeting;  // From a connection to its hello.
    /// A rank is lost that leaves more bytes unsent, or has more queued by send() at a time.
    std::size_t unsent_bytes_max = limits::rank_unsent_bytes_max;
  };
  /// Errors: those of TcpListener::make(); io.
  [[nodiscard]] static Result<std::unique_ptr<RankPort>> open(Options options, Events events);
  /// Sends what the sockets still take, and ends all connections. No event comes any more.
  ~RankPort();
  RankPort(const RankPort&) = delete;
  RankPort& operator=(const RankPort&) = delete;

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  /// Sends a message, in the order of the calls. A connection that is gone gets nothing.
  void send(Id to, const nlohmann::json& message);
  /// Ends a connection. `left` tells the reason.
  void end(Id id, const std::string& reason);

 private:
  struct Connection;
  /// Work that send() and end() leave for the thread.
  struct Order {
    Id to = 0;
    std::string line;
    std::optional<Error> end;
  };
  struct Orders {
    std::vector<Order> all;
    std::unordered_map<Id, std::size_t> line_bytes;  // For each connection.
  };

  RankPort(Options options, Events events, TcpListener listener, Descriptor poll, Descriptor bell);
  void serve(const std::stop_token& stop);
  void wait();
  void add_order(Order order);
  void take_orders();
  void accept_one();
  void take(Descriptor socket);
  void handle(Id id, std::uint32_t events);
  [[nodiscard]] Result<void> receive(Connection& connection);
  [[nodiscard]] Result<void> greet(Connection& connection, const std::string& text);
  [[nodiscard]] Result<void> send_now(Connection& connection, const std::string& line);
  [[nodiscard]] Result<void> write(Connection& connection);
  void look();
  [[nodiscard]] Result<void> look_at(Connection& connection);
  void end_strangers();
  void close(Id id, const Error& reason);

  const Options options_;
  const Events events_;
  TcpListener listener_;
  Descriptor poll_;  // An epoll of the listener, the bell and all connections.
  Descriptor bell_;  // An eventfd, which wakes the thread.
  Mutex mutex_;
  Orders orders_ FL_GUARDED_BY(mutex_);
  // All below is the thread's alone.
  std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
  Strangers strangers_;  // Connections that have not said hello yet.
  AcceptPace pace_;
  bool is_accepting_ = true;  // Whether the epoll watches the listener.
  TimePoint accept_at_{};     // When it does so again.
  TimePoint look_at_{};       // When the next look() is due.
  LineLimit stranger_lines_{
      {.lines_max = limits::rank_stranger_lines_max, .window = limits::lines_window}};
  std::jthread thread_;
};

}  // namespace fl::site
