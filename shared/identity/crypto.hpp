// The few primitives that identity is made of: SHA-256, random bytes, base64url, hexadecimal, and a
// comparison whose time does not tell where two secrets differ. All from OpenSSL. Any thread.
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

/// From the operating system's generator, fit for keys. `internal` when there is no entropy.
[[nodiscard]] Result<void> fill_random(MutableBytes out);

/// Two lower-case digits a byte.
[[nodiscard]] std::string to_hex(Bytes bytes);

/// RFC 4648, section 5, without padding: letters, digits, '-' and '_'.
[[nodiscard]] std::string to_base64url(Bytes bytes);
/// The bytes, as a string. Only what to_base64url writes is accepted (no padding, no white space,
/// no stray bits in the last character); anything else is invalid_input.
[[nodiscard]] Result<std::string> from_base64url(std::string_view text);

/// Whether both hold the same bytes, in time that depends on their sizes only.
[[nodiscard]] bool equal_in_constant_time(Bytes a, Bytes b);

/// `internal`, with OpenSSL's own reason behind `what`. Empties OpenSSL's error queue of this
/// thread.
[[nodiscard]] Error openssl_error(std::string_view what);

}  // namespace fl
