// SPDX-License-Identifier: Apache-2.0
// The cryptographic primitives of this folder, all from OpenSSL: SHA-256, HMAC, random bytes,
// base64url, hexadecimal, and a comparison in constant time. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fl {

using Sha256 = std::array<std::uint8_t, 32>;

[[nodiscard]] Sha256 sha256(Bytes bytes);

/// HMAC-SHA-256 (RFC 2104) of `bytes` with a key of any length.
[[nodiscard]] Sha256 hmac_sha256(Bytes key, Bytes bytes);

/// Fills `out` with random bytes that are good enough for keys. `internal`: the generator failed.
[[nodiscard]] Result<void> fill_random(MutableBytes out);

/// Two lower-case digits per byte.
[[nodiscard]] std::string to_hex(Bytes bytes);

/// base64url without padding (RFC 4648, section 5): letters, digits, '-' and '_'.
[[nodiscard]] std::string to_base64url(Bytes bytes);
/// Decodes base64url; returns the bytes as a string. Accepts only what to_base64url() writes: no
/// padding, no white space, no stray bits in the last character. Anything else is invalid_input.
[[nodiscard]] Result<std::string> from_base64url(std::string_view text);

/// Whether both hold the same bytes. The time depends on their sizes only, so it does not reveal
/// where two secrets differ.
[[nodiscard]] bool equal_in_constant_time(Bytes a, Bytes b);

/// An `internal` error with the message "WHAT: OpenSSL's reason". Empties this thread's OpenSSL
/// error queue.
[[nodiscard]] Error openssl_error(std::string_view what);

}  // namespace fl
