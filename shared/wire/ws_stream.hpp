// SPDX-License-Identifier: Apache-2.0
// Beast's WebSocket stream with our settings, for the few files that use it directly.
#pragma once

#include "shared/base/limits.hpp"
#include "shared/net/tls_stream.hpp"

#include <boost/beast/websocket/stream.hpp>

namespace fl {

using WsStream = beast::websocket::stream<TlsStream>;

/// Applies our settings: binary messages, size limits, no compression, no fragmentation, timeouts,
/// keep-alive pings.
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
