// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/ws_link.hpp"

#include "shared/base/async/mailbox.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/net/address_text.hpp"
#include "shared/net/dial.hpp"
#include "shared/net/peer_credit.hpp"
#include "shared/wire/server_clock.hpp"
#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_stream.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/rfc6455.hpp>

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace fl {

namespace {

namespace websocket = beast::websocket;

constexpr int unsent_bytes_max = 256 << 10;
/// A received message up to this size is copied out of the receive buffer. A larger message takes
/// the buffer, and the link allocates a new one.
constexpr std::size_t copied_bytes_max = 16 << 10;

Error link_error(const beast::error_code& ec, std::size_t message_bytes_max) {
  if (ec == websocket::error::message_too_big) {
    return {Errc::too_large,
            fmt::format("the peer sent a message of more than {} bytes", message_bytes_max)};
  }
  if (ec == beast::error::timeout) {
    return {Errc::unavailable,
            fmt::format("no answer from the peer for {} s", limits::liveness_max.count())};
  }
  if (ec == websocket::error::closed) return {Errc::unavailable, "the peer closed the connection"};
  if (ec.category() == websocket::make_error_code(websocket::error::closed).category()) {
    return {Errc::protocol, ec.message()};
  }
  if (ec == net::error::eof || ec == net::ssl::error::stream_truncated) {
    return {Errc::unavailable, "the connection broke"};
  }
  return {Errc::unavailable, ec.message()};
}

class WsLink final : public Link, public std::enable_shared_from_this<WsLink> {
 public:
  WsLink(WsStream stream, Governors governors, bool takes_credit)
      : ws_(std::move(stream)),
        remote_(peer_text(ws_.next_layer().socket())),
        certificate_ends_at_(peer_certificate_end(ws_.next_layer().ssl())),
        inbox_(ws_.get_executor(), 1),
        written_(ws_.get_executor()),
        changed_(ws_.get_executor()),
        governors_(std::move(governors)) {
    // A peer that knows no credit can't be slowed down without delaying its control messages.
    if (!takes_credit) governors_.down = nullptr;
  }

  void start() {
    net::co_spawn(ws_.get_executor(), read_all(shared_from_this()), Report{});
    start_crediting();
  }

  Awaitable<Result<Message>> receive() override {
    auto self = shared_from_this();
    auto message = co_await inbox_.pop();
    if (!message && refused_) co_return *refused_;
    if (!message) co_return down_.value_or(Error(Errc::unavailable, "the link is closed"));
    co_return std::move(*message);
  }

  Awaitable<Result<void>> send(Message message) override {
    auto self = shared_from_this();
    if (down_) co_return *down_;
    FL_CO_CHECK(check_header_size(message.header));
    auto entry = std::make_shared<Entry>(frame_header(message.header), std::move(message.payload));
    enqueue(entry);
    while (!entry->written && !down_) co_await written_.wait();
    if (!entry->written) co_return *down_;
    co_return success();
  }

  void expect_messages_of(std::size_t bytes_max) override { ws_.read_message_max(bytes_max); }
  void expect_bulk(std::uint64_t payload_bytes) override {
    peer_credit_.expect(payload_bytes);
    start_crediting();
    if (is_crediting_) grant();
  }
  std::size_t payload_room() const override {
    constexpr auto most = static_cast<std::int64_t>(limits::chunk_bytes_max);
    constexpr auto least = static_cast<std::int64_t>(limits::chunk_bytes_min);
    return static_cast<std::size_t>(std::clamp(credit_.value_or(most), least, most));
  }

  void close() override {
    if (closing_) return;
    closing_ = true;
    net::co_spawn(ws_.get_executor(), close_gracefully(shared_from_this()), Report{});
  }

  net::any_io_executor executor() const override {
    return const_cast<WsStream&>(ws_).get_executor();
  }
  std::uint64_t bytes_received() const override { return bytes_received_; }
  std::uint64_t bytes_sent() const override { return bytes_sent_; }
  std::uint64_t bytes_arrived() const override {
    return bytes_received_ + (incoming_ ? incoming_->size() : 0);
  }
  const std::string& remote() const override { return remote_; }
  double certificate_ends_at() const override { return certificate_ends_at_; }

 private:
  struct Entry {
    Entry(std::string head, Payload body) : header(std::move(head)), payload(std::move(body)) {}
    [[nodiscard]] std::uint64_t bytes() const { return header.size() + payload.bytes().size(); }
    std::string header;
    Payload payload;
    bool has_turn = false;  // The bytes of the message are among those of `turns_`.
    bool written = false;
  };

  /// Completion handler of the link's coroutines: logs an exception, which is not expected.
  struct Report {
    void operator()(const std::exception_ptr& failure) const {
      if (!failure) return;
      try {
        std::rethrow_exception(failure);
      } catch (const std::exception& error) {
        log_error("a connection ended with an unexpected error: {}", error.what());
      }
    }
  };

  void enqueue(const std::shared_ptr<Entry>& entry) {
    auto& queue = entry->payload.empty() ? control_ : bulk_;
    if (queue.size() >= limits::outbox_messages_max) {
      fail(Error(Errc::unavailable,
                 fmt::format("the peer does not read: {} messages wait to be sent", queue.size())));
      return;
    }
    queue.push_back(entry);
    changed_.notify();
    // The writer is there only while it has something to do: most links are idle.
    if (!std::exchange(is_writing_, true))
      net::co_spawn(ws_.get_executor(), write_all(shared_from_this()), Report{});
  }

  // ---- the limit on receiving: the peer sends as much as it has credit for

  void send_credit(std::uint64_t bytes) {
    wire::Header header;
    header.mutable_credit()->set_bytes(bytes);
    if (!down_) enqueue(std::make_shared<Entry>(frame_header(header), Payload()));
  }
  /// Begins to demand credit from the peer, if there is a limit: from the start, or after SIGHUP.
  void start_crediting() {
    if (is_crediting_ || !governors_.down || !governors_.down->is_limited()) return;
    is_crediting_ = true;
    send_credit(0);
  }
  /// Counts a message that has come.
  void account(const Message& message, std::uint64_t bytes) {
    if (message.payload.empty()) return governors_.down->charge(bytes);
    if (is_crediting_) {
      peer_credit_.receive(bytes, message.payload.bytes().size());
    } else {
      peer_credit_.pass(message.payload.bytes().size());
      start_crediting();
    }
    if (is_crediting_) grant();
  }
  /// Gives the peer more credit, if it should have some, as its turns at the rate come.
  void grant() {
    if (!std::exchange(is_granting_, true))
      net::co_spawn(ws_.get_executor(), grant_all(shared_from_this()), Report{});
  }
  Awaitable<void> grant_all([[maybe_unused]] std::shared_ptr<WsLink> self) {
    while (!down_) {
      const TimePoint turn = peer_credit_.advance(*governors_.down);
      if (const std::uint64_t bytes = peer_credit_.take(); bytes > 0) send_credit(bytes);
      if (turn == never) break;
      co_await changed_.wait(look_again_at(turn));
    }
    if (down_) governors_.down->charge(peer_credit_.unpaid());
    is_granting_ = false;
  }

  /// When to look again at a turn. It may come earlier than was planned: SIGHUP changes limits.
  static TimePoint look_again_at(TimePoint turn) {
    return std::min(turn, Clock::now() + Duration(limits::traffic_look_every));
  }

  // ---- the limits on sending: ours, and the peer's credit

  void take_credit(const wire::Credit& credit) {
    // Nobody needs more credit than this; and the sum does not overflow.
    constexpr std::uint64_t credit_max = 1ull << 62;
    const std::int64_t sum = credit_.value_or(0);
    const auto more = static_cast<std::int64_t>(std::min(credit.bytes(), credit_max));
    credit_ = std::min(sum, static_cast<std::int64_t>(credit_max) - more) + more;
    changed_.notify();
  }
  /// Waits until the first message with payload may be sent. Returns false if another message may
  /// come first now.
  Awaitable<bool> await_turn() {
    if (credit_ && *credit_ <= 0) {
      co_await changed_.wait();
      co_return false;
    }
    if (!governors_.up) co_return true;
    Entry& next = *bulk_.front();
    if (!governors_.up->is_limited() && !next.has_turn) co_return true;
    if (!std::exchange(next.has_turn, true)) turns_.add(next.bytes());
    const TimePoint turn = turns_.advance(*governors_.up);
    if (turn == never) co_return true;
    co_await changed_.wait(look_again_at(turn));
    co_return false;
  }
  void count_sent(const Entry& entry, std::uint64_t bytes) {
    bytes_sent_ += bytes;
    if (entry.payload.empty()) {
      if (governors_.up) governors_.up->charge(bytes);
    } else if (credit_) {
      *credit_ -= static_cast<std::int64_t>(bytes);
    }
  }

  /// `self` keeps the link alive for as long as the coroutine runs.
  Awaitable<void> read_all([[maybe_unused]] std::shared_ptr<WsLink> self) {
    // The buffer grows with each message; Beast asks for no more than a message has.
    auto& buffer = incoming_;
    buffer = std::make_shared<beast::flat_buffer>();
    for (;;) {
      const auto [ec, bytes] = co_await ws_.async_read(*buffer, as_result);
      if (ec) {
        fail(link_error(ec, ws_.read_message_max()));
        co_return;
      }
      if (refused_) {
        buffer->clear();
        continue;
      }
      if (!ws_.got_binary()) {
        refuse(Error(Errc::protocol, "a text message; this protocol has binary messages only"));
        continue;
      }
      bytes_received_ += bytes;
      auto message = take(buffer, bytes);
      if (!message) {
        refuse(message.error());
        continue;
      }
      if (message->header.has_credit()) {
        take_credit(message->header.credit());
        continue;
      }
      if (governors_.down) account(*message, bytes);
      if (!co_await inbox_.push_waiting(std::move(*message))) co_return;
    }
  }

  /// Parses the message in `buffer`. Afterwards `buffer` is empty, or a new one.
  static Result<Message> take(std::shared_ptr<beast::flat_buffer>& buffer, std::size_t bytes) {
    if (bytes <= copied_bytes_max) {
      auto copy = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
      std::memcpy(copy.get(), buffer->data().data(), bytes);
      buffer->consume(bytes);
      const Bytes view(copy.get(), bytes);
      return parse_frame(std::move(copy), view);
    }
    const Bytes view(static_cast<const std::byte*>(buffer->data().data()), bytes);
    auto message = parse_frame(std::move(buffer), view);
    buffer = std::make_shared<beast::flat_buffer>();
    return message;
  }

  Awaitable<void> write_all([[maybe_unused]] std::shared_ptr<WsLink> self) {
    while (!down_ && !(control_.empty() && bulk_.empty())) {
      if (control_.empty() && is_limited(*bulk_.front()) && !co_await await_turn()) continue;
      auto& queue = control_.empty() ? bulk_ : control_;
      const auto entry = queue.front();
      queue.pop_front();
      const Bytes body = entry->payload.bytes();
      const std::array<net::const_buffer, 2> parts{net::buffer(entry->header),
                                                   net::buffer(body.data(), body.size())};
      const auto [ec, bytes] = co_await ws_.async_write(parts, as_result);
      if (ec) {
        fail(link_error(ec, ws_.read_message_max()));
        co_return;
      }
      count_sent(*entry, bytes);
      entry->written = true;
      written_.notify();
    }
    is_writing_ = false;
  }

  [[nodiscard]] bool is_limited(const Entry& next) const {
    return credit_ || next.has_turn || (governors_.up && governors_.up->is_limited());
  }

  Awaitable<void> close_gracefully([[maybe_unused]] std::shared_ptr<WsLink> self) {
    // Send the queued messages first, within the time limit.
    Timer limit(ws_.get_executor(), limits::close_max);
    auto alive = weak_from_this();
    limit.async_wait([alive](const beast::error_code& ec) {
      if (ec) return;
      if (const auto link = alive.lock()) link->ws_.next_layer().close();
    });
    while (!down_ && !(control_.empty() && bulk_.empty())) co_await written_.wait();
    co_await ws_.async_close(websocket::close_code::normal, as_result);
    fail(Error(Errc::unavailable, "the link is closed"));
    ws_.next_layer().close();
    limit.cancel();
  }

  /// Called when the peer broke the protocol. receive() reports the error, and the caller can still
  /// send the reason to the peer. Meanwhile messages are read and dropped, so that Beast's idle
  /// timer keeps running.
  void refuse(const Error& error) {
    refused_ = error;
    inbox_.close();
  }

  void fail(const Error& error) {
    if (down_) return;
    down_ = error;
    inbox_.close();
    written_.notify();
    changed_.notify();
    if (!closing_) close();
  }

  WsStream ws_;
  std::string remote_;
  const double certificate_ends_at_;
  Mailbox<Message> inbox_;
  std::deque<std::shared_ptr<Entry>> control_;
  std::deque<std::shared_ptr<Entry>> bulk_;
  Signal written_;
  Signal changed_;  // Notified when the link is down, or the writer may have something to write.
  Governors governors_;
  Turns turns_;                         // The turns of the messages with payload that we send.
  PeerCredit peer_credit_;              // Used if governors_.down is set.
  std::optional<std::int64_t> credit_;  // The bytes that the peer lets us send; none: no limit.
  std::optional<Error> refused_;
  std::optional<Error> down_;
  bool closing_ = false;
  bool is_writing_ = false;
  bool is_granting_ = false;
  bool is_crediting_ = false;                     // The peer needs credit.
  std::shared_ptr<beast::flat_buffer> incoming_;  // The bytes that have come of the next message.
  std::atomic<std::uint64_t> bytes_received_ = 0;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
};

}  // namespace

void tune_socket(net::ip::tcp::socket& socket) {
  beast::error_code ignored;
  socket.set_option(net::ip::tcp::no_delay(true), ignored);
  const int unsent = unsent_bytes_max;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
}

namespace {

/// The header by which both ends say that they know wire::Credit.
constexpr const char* credit_header = "Tributary-Credit";

template <class Fields>
bool knows_credit(const Fields& head) {
  return head[credit_header] == "1";
}

/// Adds the header to the request or the answer of the WebSocket's handshake.
void offer_credit(WsStream& ws) {
  const auto add = [](auto& head) { head.set(credit_header, "1"); };
  ws.set_option(websocket::stream_base::decorator(add));
}

std::shared_ptr<Link> make_ws_link(WsStream stream, Governors governors, bool takes_credit) {
  auto link = std::make_shared<WsLink>(std::move(stream), std::move(governors), takes_credit);
  link->start();
  return link;
}

}  // namespace

Awaitable<Result<std::shared_ptr<Link>>> accept_ws(
    TlsStream stream, beast::http::request<beast::http::string_body> request, Governors governors) {
  stream.expires_never();  // The WebSocket has its own timeouts.
  WsStream ws(std::move(stream));
  tune_websocket(ws);
  ws.read_message_max(limits::hello_bytes_max);
  const bool takes_credit = knows_credit(request);
  if (takes_credit) offer_credit(ws);
  const auto [ec] = co_await ws.async_accept(request, as_result);
  if (ec == beast::error::timeout)
    co_return Error(Errc::unavailable, fmt::format("the WebSocket handshake took longer than {} s",
                                                   limits::handshake_max.count()));
  if (ec) co_return link_error(ec, ws.read_message_max());
  co_return make_ws_link(std::move(ws), std::move(governors), takes_credit);
}

Awaitable<Result<std::shared_ptr<Link>>> connect_ws(net::any_io_executor executor,
                                                    ServerAddress server, ProxyRules rules,
                                                    Governors governors,
                                                    net::ssl::context& context) {
  const std::string place = to_string(server);
  WsStream ws(executor, context);
  TlsStream& tls = ws.next_layer();
  tls.expires_after(limits::handshake_max);
  const auto dialled = co_await dial(tls, server, rules);
  if (!dialled) {
    // A peer that is not reached in time counts as not reached: the caller tries again.
    const bool is_late = dialled.error().code() == Errc::deadline;
    co_return Error(is_late ? Errc::unavailable : dialled.error().code(),
                    dialled.error().message());
  }
  tune_socket(tls.socket());

  SSL& ssl = tls.ssl();
  if (!is_ip_address(server.host)) set_server_name(ssl, server.host);
  const auto [tls_ec] = co_await tls.async_handshake(net::ssl::stream_base::client, as_result);
  if (tls_ec) {
    const Error error = handshake_error(ssl, tls_ec, place);
    if (shows_foreign_certificate(ssl)) co_return Error(Errc::conflict, error.message());
    if (!is_time_error(ssl, tls_ec)) co_return error;
    co_return co_await explain_time_error(error, executor, server, rules, context);
  }

  tls.expires_never();
  tune_websocket(ws);
  offer_credit(ws);
  websocket::response_type response;
  const auto [ws_ec] = co_await ws.async_handshake(response, place, session_path, as_result);
  if (ws_ec == websocket::error::upgrade_declined) {
    const auto kind = response.result() == beast::http::status::unauthorized ? Errc::unauthenticated
                      : response.result_int() >= 500                         ? Errc::unavailable
                                                                             : Errc::protocol;
    co_return Error(kind, fmt::format("{}: the server answered {}: {}", place,
                                      response.result_int(), std::string(response.body())));
  }
  if (ws_ec) {
    // With TLS 1.3 a server's rejection of our certificate arrives after our side of the TLS
    // handshake has ended, so it shows here.
    const Error error = handshake_error(ssl, ws_ec, place);
    if (!is_time_error(ssl, ws_ec)) co_return error;
    co_return co_await explain_time_error(error, executor, server, rules, context);
  }
  const bool takes_credit = knows_credit(response);
  if (governors.down && governors.down->is_limited() && !takes_credit)
    log_warn("the server at {} is too old for a limit of what it sends: it sends without one",
             place);
  co_return make_ws_link(std::move(ws), std::move(governors), takes_credit);
}

}  // namespace fl
