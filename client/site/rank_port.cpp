// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank_port.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/learn/process/polled_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "client/site/site_handshake.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/io/files_max.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

// Keys of the epoll that are no connection's number.
constexpr std::uint64_t listener_key = ~std::uint64_t{0};
constexpr std::uint64_t bell_key = listener_key - 1;

/// All ranks may come at the same moment. The port has no TLS handshakes: a new connection begins
/// at once, and the oldest one ends; if its address has too many, the oldest one of that address.
Strangers::Limits places_of(const RankPort::Options& options) {
  const auto ranks = static_cast<std::size_t>(options.size);
  return {.all = ranks + limits::rank_strangers_max,
          .of_address = ranks + limits::rank_strangers_max / 2,
          .handshakes_reserved = 0,
          .time = options.greeting,
          .addresses = {.of_address = no_fruitless_limit, .of_unknown = no_fruitless_limit}};
}

/// Strangers, and ranks of which each may come a second time before its first connection ends.
std::size_t connections_max(int size) {
  return 2 * (static_cast<std::size_t>(size) + limits::rank_strangers_max);
}

void warn_of_few_files(int size) {
  const std::uint64_t files = raise_files_max();
  const std::uint64_t needed = connections_max(size) + limits::files_reserved;
  if (files < needed) {
    log_warn(
        "a site of {} ranks needs up to {} open files, and this process may have {}: raise "
        "the limit (ulimit -n, LimitNOFILE)",
        size, needed, files);
  }
}

Error does_not_read(std::size_t bytes) {
  return {Errc::unavailable, fmt::format("it does not read: {} bytes wait for it", bytes)};
}

bool watch(const Descriptor& poll, int operation, int socket, std::uint32_t events,
           std::uint64_t key) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return ::epoll_ctl(poll.number(), operation, socket, &event) == 0;
}

}  // namespace

struct RankPort::Connection {
  Connection(Descriptor socket, Id number, RankGreeting asked)
      : line(std::move(socket), "the rank"), id(number), greeting(std::move(asked)) {}

  PolledLine line;
  const Id id;
  RankGreeting greeting;
  std::optional<SiteMember> member;  // Set once the rank has entered.
  TimePoint heard{};                 // When the rank's last message came.
  TimePoint told{};                  // When this end sent its last sign of life.
  std::uint32_t watched = EPOLLIN;   // The events that the epoll watches.
};

Result<std::unique_ptr<RankPort>> RankPort::open(Options options, Events events) {
  warn_of_few_files(options.size);
  FL_TRY(TcpListener listener,
         TcpListener::make(options.host, options.port,
                           options.size + static_cast<int>(limits::rank_waiting_max)));
  Descriptor poll(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const bool is_watched = poll.number() >= 0 && bell.number() >= 0 &&
                          watch(poll, EPOLL_CTL_ADD, listener.number(), EPOLLIN, listener_key) &&
                          watch(poll, EPOLL_CTL_ADD, bell.number(), EPOLLIN, bell_key);
  if (!is_watched) return errno_error("can't wait for the site's connections");
  return std::unique_ptr<RankPort>(new RankPort(std::move(options), std::move(events),
                                                std::move(listener), std::move(poll),
                                                std::move(bell)));
}

RankPort::RankPort(Options options, Events events, TcpListener listener, Descriptor poll,
                   Descriptor bell)
    : options_(std::move(options)),
      events_(std::move(events)),
      listener_(std::move(listener)),
      poll_(std::move(poll)),
      bell_(std::move(bell)),
      strangers_(places_of(options_)),
      pace_(1 + static_cast<std::size_t>(options_.size) / limits::ranks_of_accept_turn) {
  const WithoutStopSignals guard;
  thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

RankPort::~RankPort() {
  thread_.request_stop();
  add_order({});
  thread_.join();
}

void RankPort::send(Id to, const json& message) {
  add_order({.to = to, .line = json_text(message), .end = {}});
}

void RankPort::end(Id id, const std::string& reason) {
  add_order({.to = id, .line = {}, .end = Error(Errc::unavailable, reason)});
}

void RankPort::add_order(Order order) {
  {
    const MutexLock lock(mutex_);
    // Counted here, too: the port's thread may add many lines before it sends the first one.
    std::size_t& bytes = orders_.line_bytes[order.to];
    if (bytes > options_.unsent_bytes_max) {
      orders_.all.push_back({.to = order.to, .line = {}, .end = does_not_read(bytes)});
    } else {
      bytes += order.line.size();
      orders_.all.push_back(std::move(order));
    }
    if (orders_.all.size() > 1) return;  // The bell has rung, and the thread takes all.
  }
  const std::uint64_t one = 1;
  static_cast<void>(!::write(bell_.number(), &one, sizeof one));  // Fails only if it rings already.
}

void RankPort::serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    wait();
    take_orders();
    if (Clock::now() >= look_at_) look();
  }
  take_orders();
  for (const auto& [id, connection] : connections_) connection->line.shut();
  connections_.clear();
}

/// Waits for the sockets, and serves those that are ready.
void RankPort::wait() {
  if (!is_accepting_ && Clock::now() >= accept_at_)
    is_accepting_ = watch(poll_, EPOLL_CTL_MOD, listener_.number(), EPOLLIN, listener_key);
  const TimePoint until = is_accepting_ ? look_at_ : std::min(look_at_, accept_at_);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  // There is room for all, so that no connection waits while others are served twice.
  std::vector<epoll_event> ready(connections_.size() + 2);
  const int count = ::epoll_wait(poll_.number(), ready.data(), static_cast<int>(ready.size()),
                                 static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    if (event.data.u64 == listener_key) {
      accept_one();
    } else if (event.data.u64 == bell_key) {
      std::uint64_t rings = 0;
      static_cast<void>(!::read(bell_.number(), &rings, sizeof rings));
    } else {
      handle(event.data.u64, event.events);
    }
  }
}

void RankPort::take_orders() {
  Orders orders;
  {
    const MutexLock lock(mutex_);
    std::swap(orders, orders_);
  }
  for (const Order& order : orders.all) {
    const auto found = connections_.find(order.to);
    if (found == connections_.end()) continue;
    if (order.end) {
      close(order.to, *order.end);
    } else if (auto sent = send_now(*found->second, order.line); !sent) {
      close(order.to, sent.error());
    }
  }
}

void RankPort::accept_one() {
  Descriptor socket = listener_.accept(Duration::zero());
  const bool has_failed = socket.number() < 0 && errno != EAGAIN;
  const TimePoint now = Clock::now();
  // After a failure (this process may have too many open files) the next attempt would fail, too.
  accept_at_ = has_failed ? now + limits::rank_look : now;
  if (socket.number() >= 0) {
    accept_at_ = pace_.next(now);
    take(std::move(socket));
  }
  if (accept_at_ > now)
    is_accepting_ = !watch(poll_, EPOLL_CTL_MOD, listener_.number(), 0, listener_key);
}

void RankPort::take(Descriptor socket) {
  if (connections_.size() >= connections_max(options_.size)) return;
  auto greeting = RankGreeting::begin(options_.secret, options_.size);
  if (!greeting) return log_warn("{}", greeting.error().message());
  const sockaddr_storage from = peer_address(socket);
  const Id id =
      strangers_.enter(stranger_address(reinterpret_cast<const sockaddr&>(from)), Clock::now());
  const int number = socket.number();
  auto made = std::make_unique<Connection>(std::move(socket), id, std::move(*greeting));
  Connection& connection = *connections_.emplace(id, std::move(made)).first->second;
  auto begun = send_now(connection, json_text(connection.greeting.challenge()));
  if (begun && !watch(poll_, EPOLL_CTL_ADD, number, connection.watched, id))
    begun = errno_error("can't wait for a connection");
  if (!begun) close(id, begun.error());
  end_strangers();
}

void RankPort::handle(Id id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // It ended while others were served.
  Result<void> served;
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0) served = receive(*found->second);
  if (served) served = write(*found->second);
  if (!served) close(id, served.error());
}

Result<void> RankPort::receive(Connection& connection) {
  FL_CHECK(connection.line.read());
  for (;;) {
    FL_TRY(const auto text,
           connection.line.next(connection.member ? limits::rank_line_bytes_max
                                                  : limits::rank_greeting_bytes_max));
    if (!text) return {};
    if (!connection.member) {
      FL_CHECK(greet(connection, *text));
      continue;
    }
    FL_TRY(const json message, parse_message(*text, "the rank"));
    connection.heard = Clock::now();
    FL_CHECK(events_.said({connection.id, *connection.member}, message));
  }
}

/// Goes on with the handshake.
Result<void> RankPort::greet(Connection& connection, const std::string& text) {
  json answer;
  auto member = connection.greeting.hear(parse_json(text), answer);
  if (!answer.is_null()) FL_CHECK(send_now(connection, json_text(answer)));
  if (!member) return member.error();
  if (!*member) return {};
  (*member)->agent_address = own_address(connection.line.number());
  strangers_.leave(connection.id);
  if (auto entered = events_.entered({connection.id, **member}); !entered) {
    FL_CHECK(send_now(connection, json_text(rank_refusal(entered.error().message()))));
    return entered;
  }
  connection.member = std::move(**member);
  connection.heard = connection.told = Clock::now();
  return {};
}

Result<void> RankPort::send_now(Connection& connection, const std::string& line) {
  if (connection.line.unsent() > options_.unsent_bytes_max)
    return does_not_read(connection.line.unsent());
  connection.line.queue(line, Clock::now());
  return write(connection);
}

Result<void> RankPort::write(Connection& connection) {
  FL_CHECK(connection.line.write(Clock::now()));
  const std::uint32_t more = connection.line.unsent() > 0 ? std::uint32_t{EPOLLOUT} : 0U;
  const std::uint32_t wanted = EPOLLIN | more;
  if (std::exchange(connection.watched, wanted) != wanted)
    watch(poll_, EPOLL_CTL_MOD, connection.line.number(), wanted, connection.id);
  return {};
}

/// Sends signs of life, and ends who is silent, does not read or has not said hello in time.
void RankPort::look() {
  look_at_ = Clock::now() + limits::rank_look;
  end_strangers();
  std::vector<std::pair<Id, Error>> over;
  for (const auto& [id, connection] : connections_) {
    if (!connection->member) continue;
    if (auto seen = look_at(*connection); !seen) over.emplace_back(id, seen.error());
  }
  for (const auto& [id, reason] : over) close(id, reason);
}

Result<void> RankPort::look_at(Connection& connection) {
  const TimePoint now = Clock::now();
  if (now - connection.heard > options_.silence) {
    return Error(Errc::unavailable,
                 fmt::format("it was silent for {:.0f} s", seconds(options_.silence)));
  }
  if (connection.line.unsent() > 0 && now - connection.line.moved() > limits::rank_send_wait) {
    return Error(Errc::unavailable,
                 fmt::format("it has not read for {:.0f} s", seconds(limits::rank_send_wait)));
  }
  if (now - connection.told < limits::rank_beat) return {};
  connection.told = now;
  return send_now(connection, json_text(json{{"type", "alive"}}));
}

/// Ends strangers that are too many, the oldest first, or too slow.
void RankPort::end_strangers() {
  for (const Id id : strangers_.next(Clock::now()).close)
    close(id, Error(Errc::deadline, "it did not say hello in time, or too many others came"));
}

void RankPort::close(Id id, const Error& reason) {
  const auto gone = connections_.extract(id);
  if (gone.empty()) return;
  Connection& connection = *gone.mapped();
  strangers_.leave(id);
  // A child process that was just forked may hold the socket, too, until it starts its program.
  watch(poll_, EPOLL_CTL_DEL, connection.line.number(), 0, id);
  connection.line.shut();
  if (connection.member) {
    events_.left({id, *connection.member}, reason);
  } else if (stranger_lines_.passes("stranger")) {
    // Few of these lines are logged, because anybody in the site's network can cause them.
    log_warn("a connection to the site's port was closed: {}", reason.message());
  }
}

}  // namespace fl::site
