// SPDX-License-Identifier: Apache-2.0
// TlsStream: a TLS connection over TCP. OpenSSL reads from the socket and writes to it directly.
// (Asio's ssl::stream copies each byte through two more buffers and returns after each record of
// 16 KiB; a round takes a sixth longer with it.)
//
// The type satisfies Beast's AsyncStream, so a Beast WebSocket can run on top of it. Use it from
// one strand, with at most one read and one write (or handshake, or shutdown) pending. close() ends
// pending operations; until then they keep the connection alive.
#pragma once

#include "shared/base/async/asio.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream_base.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/container/static_vector.hpp>

#include <chrono>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fl {

namespace beast = boost::beast;

/// A type-erased completion handler, called once, on its executor. (Asio's any_completion_handler
/// does not compile below a WebSocket in Boost 1.81.) It ignores cancellation slots: a pending
/// operation ends when the connection ends.
template <class... Args>
class AnyHandler {
 public:
  using executor_type = net::any_io_executor;

  template <class Handler>
  AnyHandler(Handler handler, const net::any_io_executor& fallback)
      : executor_(net::get_associated_executor(handler, fallback)),
        call_(std::make_unique<CallOf<Handler>>(std::move(handler))) {}

  [[nodiscard]] executor_type get_executor() const noexcept { return executor_; }
  void operator()(Args... args) { std::exchange(call_, nullptr)->run(args...); }

 private:
  struct Call {
    virtual ~Call() = default;
    virtual void run(Args... args) = 0;
  };
  template <class Handler>
  struct CallOf final : Call {
    explicit CallOf(Handler given) : handler(std::move(given)) {}
    void run(Args... args) override { handler(args...); }
    Handler handler;
  };

  net::any_io_executor executor_;
  std::unique_ptr<Call> call_;
};

class TlsStream {
 public:
  using executor_type = net::any_io_executor;

  TlsStream(const net::any_io_executor& executor, net::ssl::context& context);
  /// `first`: bytes that were read from the socket already, as the first that the peer sent.
  TlsStream(net::ip::tcp::socket socket, net::ssl::context& context, std::string first = {});

  [[nodiscard]] executor_type get_executor() noexcept { return socket().get_executor(); }
  [[nodiscard]] net::ip::tcp::socket& socket() noexcept;
  [[nodiscard]] SSL& ssl() noexcept;

  /// Sets the deadline of the connection. When it passes, the socket is closed and pending
  /// operations end with beast::error::timeout.
  void expires_at(std::chrono::steady_clock::time_point deadline);
  void expires_after(std::chrono::steady_clock::duration duration);
  void expires_never();
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const;
  void close();

  /// Connects TCP (no TLS yet) to the first endpoint that answers. Each endpoint gets an equal
  /// share of the time left until the deadline.
  Awaitable<beast::error_code> connect(std::vector<net::ip::tcp::endpoint> endpoints);

  /// Read and write without TLS, for what comes before the handshake.
  Awaitable<std::pair<beast::error_code, std::size_t>> read_plain(net::mutable_buffer room);
  Awaitable<beast::error_code> write_plain(std::string text);

  /// Call this after a failure and before close(). It shuts down sending, then reads and drops what
  /// the peer sends until the peer closes, the deadline passes, or 64 KiB were read. Otherwise
  /// unread bytes would make the kernel send a reset, and the peer would not get our TLS alert,
  /// which says what was wrong.
  Awaitable<void> discard_rest();

  /// Completes with (error_code, bytes).
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    const auto start = [this](auto handler, const auto& list) {
      read_some(list, BytesHandler(std::move(handler), get_executor()));
    };
    return net::async_initiate<Token, void(beast::error_code, std::size_t)>(
        start, token, first_of<net::mutable_buffer>(buffers));
  }
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    const auto start = [this](auto handler, const auto& list) {
      write_some(list, BytesHandler(std::move(handler), get_executor()));
    };
    return net::async_initiate<Token, void(beast::error_code, std::size_t)>(
        start, token, first_of<net::const_buffer>(buffers));
  }
  /// Completes with (error_code).
  template <class Token>
  auto async_handshake(net::ssl::stream_base::handshake_type type, Token&& token) {
    const auto start = [this, type](auto handler) {
      handshake(type, Handler(std::move(handler), get_executor()));
    };
    return net::async_initiate<Token, void(beast::error_code)>(start, token);
  }
  template <class Token>
  auto async_shutdown(Token&& token) {
    const auto start = [this](auto handler) {
      shut_down(Handler(std::move(handler), get_executor()));
    };
    return net::async_initiate<Token, void(beast::error_code)>(start, token);
  }

 private:
  struct Connection;
  using BytesHandler = AnyHandler<beast::error_code, std::size_t>;
  using Handler = AnyHandler<beast::error_code>;
  /// Buffers beyond these are ignored, which read_some and write_some may do.
  static constexpr std::size_t buffers_max = 16;
  template <class Buffer>
  using List = boost::container::static_vector<Buffer, buffers_max>;

  template <class Buffer, class Buffers>
  static List<Buffer> first_of(const Buffers& buffers) {
    List<Buffer> list;
    for (auto at = net::buffer_sequence_begin(buffers);
         at != net::buffer_sequence_end(buffers) && list.size() < buffers_max; ++at) {
      const Buffer buffer = *at;
      if (buffer.size() > 0) list.push_back(buffer);
    }
    return list;
  }

  void read_some(const List<net::mutable_buffer>& buffers, BytesHandler handler);
  void write_some(const List<net::const_buffer>& buffers, BytesHandler handler);
  void handshake(net::ssl::stream_base::handshake_type type, Handler handler);
  void shut_down(Handler handler);
  void tear_down(beast::role_type role, Handler handler);

  // Beast's WebSocket calls these two: to end the connection below it, and to cut it on a timeout.
  template <class TeardownHandler>
  friend void async_teardown(beast::role_type role, TlsStream& stream, TeardownHandler handler) {
    stream.tear_down(role, Handler(std::move(handler), stream.get_executor()));
  }
  friend void beast_close_socket(TlsStream& stream) { stream.close(); }

  std::shared_ptr<Connection> connection_;
};

}  // namespace fl
