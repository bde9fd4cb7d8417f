#include "shared/wire/tls_stream.hpp"

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

void TlsStream::tear_down(beast::role_type role, Handler handler) {
  using beast::websocket::async_teardown;
  async_teardown(role, ssl_, std::move(handler));
}

}  // namespace fl
