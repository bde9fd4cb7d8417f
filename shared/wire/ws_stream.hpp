// Beast's WebSocket with our settings, for those few files that speak through it themselves.
#pragma once

#include "shared/base/limits.hpp"
#include "shared/net/tls_stream.hpp"

#include <boost/beast/websocket/stream.hpp>

namespace fl {

using WsStream = beast::websocket::stream<TlsStream>;

/// Binary messages, our size limits, no compression, no fragmentation, keep-alive pings.
template <class NextLayer>
void tune_websocket(beast::websocket::stream<NextLayer>& stream) {
  stream.binary(true);
  stream.auto_fragment(false);
  stream.write_buffer_bytes(128 << 10);
  stream.read_message_max(limits::message_bytes_max);
  beast::websocket::permessage_deflate off;
  off.server_enable = off.client_enable = false;
  stream.set_option(off);
  beast::websocket::stream_base::timeout timeout{};
  timeout.handshake_timeout = limits::handshake_max;
  timeout.idle_timeout = limits::liveness_max;
  timeout.keep_alive_pings = true;
  stream.set_option(timeout);
}

}  // namespace fl
