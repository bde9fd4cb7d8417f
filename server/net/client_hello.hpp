// SPDX-License-Identifier: Apache-2.0
// Whether the first bytes of a connection are a whole TLS ClientHello, so that the server spends
// nothing on a handshake before. Any thread.
#pragma once

#include "shared/base/io/bytes.hpp"

namespace fl {

enum class HelloStage {
  partial,  // More bytes may make it whole.
  whole,    // There may be more bytes behind it.
  none,     // No bytes behind these make it a ClientHello, or it is too large.
};

/// A ClientHello may be divided among TLS records, and these among TCP segments. With its records
/// it may have limits::client_hello_bytes_max. What is inside is left to OpenSSL.
[[nodiscard]] HelloStage look_at_hello(Bytes first);

}  // namespace fl
