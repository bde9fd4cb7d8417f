// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/ws_link.hpp"

#include "shared/base/async/mailbox.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/net/address_text.hpp"
#include "shared/net/dial.hpp"
#include "shared/wire/outbox.hpp"
#include "shared/wire/receive_limit.hpp"
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

/// Parses the message in `buffer`. Afterwards `buffer` is empty, or a new one.
Result<Message> take(std::shared_ptr<beast::flat_buffer>& buffer, std::size_t bytes) {
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

class WsLink final : public Link, public std::enable_shared_from_this<WsLink> {
 public:
  WsLink(WsStream stream, Governors governors, bool takes_credit)
      : ws_(std::move(stream)),
        remote_(peer_text(ws_.next_layer().socket())),
        certificate_ends_at_(peer_certificate_end(ws_.next_layer().ssl())),
        inbox_(ws_.get_executor(), 1),
        outbox_(std::move(governors.up)),
        receive_limit_(takes_credit ? std::move(governors.down) : nullptr),
        written_(ws_.get_executor()),
        changed_(ws_.get_executor()) {}

  void start() {
    net::co_spawn(ws_.get_executor(), read_all(shared_from_this()), Report{});
    if (receive_limit_.begins()) send_credit(0);
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
    auto outgoing =
        std::make_shared<Outgoing>(frame_header(message.header), std::move(message.payload));
    enqueue(outgoing);
    while (!outgoing->is_written && !down_) co_await written_.wait();
    if (!outgoing->is_written) co_return *down_;
    co_return success();
  }

  void expect_messages_of(std::size_t bytes_max) override { ws_.read_message_max(bytes_max); }
  void expect_bulk(std::uint64_t payload_bytes) override {
    receive_limit_.expect(payload_bytes);
    update_credit();
  }
  std::size_t payload_room() const override { return outbox_.payload_room(); }

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

  void enqueue(std::shared_ptr<Outgoing> message) {
    if (const auto pushed = outbox_.push(std::move(message)); !pushed) return fail(pushed.error());
    changed_.notify();
    // The writer is there only while it has something to do: most links are idle.
    if (!std::exchange(is_writing_, true))
      net::co_spawn(ws_.get_executor(), write_all(shared_from_this()), Report{});
  }

  void send_credit(std::uint64_t bytes) {
    wire::Header header;
    header.mutable_credit()->set_bytes(bytes);
    if (!down_) enqueue(std::make_shared<Outgoing>(frame_header(header), Payload()));
  }
  /// Demands credit from the peer if there is a limit now, and gives it what it should have, as its
  /// turns at the rate come.
  void update_credit() {
    if (receive_limit_.begins()) send_credit(0);
    if (receive_limit_.is_needed() && !std::exchange(is_granting_, true))
      net::co_spawn(ws_.get_executor(), grant_all(shared_from_this()), Report{});
  }
  Awaitable<void> grant_all([[maybe_unused]] std::shared_ptr<WsLink> self) {
    while (!down_) {
      const auto grant = receive_limit_.grant();
      if (grant.bytes > 0) send_credit(grant.bytes);
      if (grant.next == never) break;
      // The turn may come earlier than was planned: SIGHUP changes limits.
      co_await changed_.wait(
          std::min(grant.next, Clock::now() + Duration(limits::traffic_look_every)));
    }
    if (down_) receive_limit_.end();
    is_granting_ = false;
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
        outbox_.take_credit(message->header.credit().bytes());
        changed_.notify();
        continue;
      }
      receive_limit_.receive(bytes, message->payload.bytes().size());
      if (!message->payload.empty()) update_credit();
      if (!co_await inbox_.push_waiting(std::move(*message))) co_return;
    }
  }

  Awaitable<void> write_all([[maybe_unused]] std::shared_ptr<WsLink> self) {
    while (!down_ && !outbox_.empty()) {
      if (const auto until = outbox_.wait()) {
        co_await changed_.wait(*until);
        continue;
      }
      const auto message = outbox_.pop();
      const Bytes body = message->payload.bytes();
      const std::array<net::const_buffer, 2> parts{net::buffer(message->header),
                                                   net::buffer(body.data(), body.size())};
      const auto [ec, bytes] = co_await ws_.async_write(parts, as_result);
      if (ec) {
        fail(link_error(ec, ws_.read_message_max()));
        co_return;
      }
      bytes_sent_ += bytes;
      outbox_.count_sent(*message, bytes);
      message->is_written = true;
      written_.notify();
    }
    is_writing_ = false;
  }

  Awaitable<void> close_gracefully([[maybe_unused]] std::shared_ptr<WsLink> self) {
    // Send the queued messages first, within the time limit.
    Timer limit(ws_.get_executor(), limits::close_max);
    auto alive = weak_from_this();
    limit.async_wait([alive](const beast::error_code& ec) {
      if (ec) return;
      if (const auto link = alive.lock()) link->ws_.next_layer().close();
    });
    while (!down_ && !outbox_.empty()) co_await written_.wait();
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
  Outbox outbox_;
  ReceiveLimit receive_limit_;
  Signal written_;
  Signal changed_;  // Notified when the link is down, or the writer may have something to write.
  std::optional<Error> refused_;
  std::optional<Error> down_;
  bool closing_ = false;
  bool is_writing_ = false;
  bool is_granting_ = false;
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
