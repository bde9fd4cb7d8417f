// SPDX-License-Identifier: Apache-2.0
// Whether the first bytes of a connection are a whole TLS ClientHello, so that the server spends
// nothing on a handshake before. Any thread.
#pragma once

#include "shared/base/io/bytes.hpp"

namespace fl::server {

enum class HelloStage {
  partial,  // More bytes may complete it.
  whole,    // The ClientHello is complete. More bytes may follow it.
  none,     // It can't become a ClientHello, or it is too large.
};

/// A ClientHello may be divided among TLS records, and these among TCP segments. With its records
/// it may have limits::client_hello_bytes_max. Only OpenSSL reads its contents.
[[nodiscard]] HelloStage look_at_hello(Bytes first);

}  // namespace fl::server
