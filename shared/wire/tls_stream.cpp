#include "shared/wire/tls_stream.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/beast/websocket/ssl.hpp>

namespace fl {

void TlsStream::read_some(const List<net::mutable_buffer>& buffers, BytesHandler handler) {
  ssl_.async_read_some(buffers, std::move(handler));
}

void TlsStream::write_some(const List<net::const_buffer>& buffers, BytesHandler handler) {
  ssl_.async_write_some(buffers, std::move(handler));
}

void TlsStream::handshake(net::ssl::stream_base::handshake_type type, Handler handler) {
  ssl_.async_handshake(type, std::move(handler));
}

void TlsStream::shut_down(Handler handler) { ssl_.async_shutdown(std::move(handler)); }

/// Always a success: Beast would take an error (mostly that the peer is gone already) for the cause
/// of the end, and forget the real one, such as a message that was too big.
void TlsStream::tear_down(beast::role_type role, Handler handler) {
  const auto executor = handler.get_executor();
  auto done = [handler = std::move(handler)](const beast::error_code&) mutable { handler({}); };
  // As Beast's own for an ssl_stream, which Clang finds twice.
  auto tcp = [this, role, executor, done = std::move(done)](const beast::error_code&) mutable {
    async_teardown(role, ssl_.next_layer(), net::bind_executor(executor, std::move(done)));
  };
  ssl_.async_shutdown(net::bind_executor(executor, std::move(tcp)));
}

}  // namespace fl
