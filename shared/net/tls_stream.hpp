// A TLS connection over TCP as one plain type: OpenSSL reads its records from the socket and writes
// them to it by itself. (Asio's ssl::stream takes each byte through two buffers more on its way,
// and comes back after each record of 16 KiB; a round costs a sixth more with it.)
//
// An AsyncStream as Beast wants it: websocket:: works over it. One strand at a time; at most one
// read and one write (or handshake, or shutdown) under way. What is under way ends with close(),
// and keeps the connection alive until then.
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
#include <type_traits>

namespace fl {

namespace beast = boost::beast;

/// Any handler of a signature, called once, on the given executor. (Asio's own
/// any_completion_handler doesn't compile below a WebSocket in Boost 1.81.) Cancellation slots are
/// not passed on: what is under way on a connection ends with the connection.
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
  TlsStream(net::ip::tcp::socket socket, net::ssl::context& context);

  [[nodiscard]] executor_type get_executor() noexcept { return socket().get_executor(); }
  [[nodiscard]] net::ip::tcp::socket& socket() noexcept;
  [[nodiscard]] SSL& ssl() noexcept;

  /// When the deadline passes, the socket is closed and what is under way ends with
  /// beast::error::timeout.
  void expires_at(std::chrono::steady_clock::time_point deadline);
  void expires_after(std::chrono::steady_clock::duration duration);
  void expires_never();
  void close();

  /// TCP only; the first of the endpoints that answers, each within its share of the time left.
  Awaitable<beast::error_code> connect(net::ip::tcp::resolver::results_type endpoints);

  /// After a failure: sends nothing more, and throws away what the peer sends until it ends, or
  /// until the deadline, or 64 KiB. Otherwise what it had sent already would turn our last word to
  /// it, the alert that says what was wrong, into a reset.
  Awaitable<void> discard_rest();

  /// error_code, bytes.
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
  /// error_code.
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
  /// More need not be taken: "some" may always be less than was given.
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

  /// How Beast's WebSocket ends the connection below it, and cuts it when its time is over.
  template <class TeardownHandler>
  friend void async_teardown(beast::role_type role, TlsStream& stream, TeardownHandler handler) {
    stream.tear_down(role, Handler(std::move(handler), stream.get_executor()));
  }
  friend void beast_close_socket(TlsStream& stream) { stream.close(); }

  std::shared_ptr<Connection> connection_;
};

}  // namespace fl
