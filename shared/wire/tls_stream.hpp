// A TLS connection over TCP as one plain type. What Asio and Beast do below a read or a write is
// compiled once, in tls_stream.cpp; a file that used Beast's own ssl_stream would instantiate it
// all anew for each of its operations, which takes the compiler a minute and more.
//
// An AsyncStream as Beast wants it: http:: and websocket:: work over it. One strand at a time.
#pragma once

#include "shared/base/asio.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <boost/container/static_vector.hpp>

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
  using next_layer_type = beast::tcp_stream;

  TlsStream(net::any_io_executor executor, net::ssl::context& context)
      : ssl_(std::move(executor), context) {}
  TlsStream(net::ip::tcp::socket socket, net::ssl::context& context)
      : ssl_(std::move(socket), context) {}

  [[nodiscard]] executor_type get_executor() noexcept { return ssl_.get_executor(); }
  /// Deadlines, socket options, closing.
  [[nodiscard]] beast::tcp_stream& next_layer() noexcept { return ssl_.next_layer(); }
  [[nodiscard]] const beast::tcp_stream& next_layer() const noexcept { return ssl_.next_layer(); }
  [[nodiscard]] SSL& ssl() { return *ssl_.native_handle(); }

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

  /// How Beast's WebSocket ends the connection below it.
  template <class TeardownHandler>
  friend void async_teardown(beast::role_type role, TlsStream& stream, TeardownHandler handler) {
    stream.tear_down(role, Handler(std::move(handler), stream.get_executor()));
  }

  beast::ssl_stream<beast::tcp_stream> ssl_;
};

}  // namespace fl
