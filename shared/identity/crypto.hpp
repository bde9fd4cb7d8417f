// SPDX-License-Identifier: Apache-2.0
// The cryptographic primitives of this folder, all from OpenSSL: SHA-256, HMAC, random bytes,
// and a comparison in constant time. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace fl {

using Sha256 = std::array<std::uint8_t, 32>;

[[nodiscard]] Sha256 sha256(Bytes bytes);

/// HMAC-SHA-256 (RFC 2104) of `bytes` with a key of any length.
[[nodiscard]] Sha256 hmac_sha256(Bytes key, Bytes bytes);

/// Fills `out` with random bytes that are good enough for keys. `internal`: the generator failed.
[[nodiscard]] Result<void> fill_random(MutableBytes out);

/// Whether both hold the same bytes. The time depends on their sizes only, so it does not reveal
/// where two secrets differ.
[[nodiscard]] bool equal_in_constant_time(Bytes a, Bytes b);

/// An `internal` error with the message "WHAT: OpenSSL's reason". Empties this thread's OpenSSL
/// error queue.
[[nodiscard]] Error openssl_error(std::string_view what);

}  // namespace fl
