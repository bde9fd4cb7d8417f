// SPDX-License-Identifier: Apache-2.0
// Bytes written as text, for JSON, flags and headers. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <string>
#include <string_view>

namespace fl {

/// Two lower-case digits per byte.
[[nodiscard]] std::string to_hex(Bytes bytes);
/// Fills `out` from two digits per byte, in either case. False if the text is anything else, or not
/// exactly as long; then `out` has no meaning.
[[nodiscard]] bool read_hex(std::string_view text, MutableBytes out);

/// base64url without padding (RFC 4648, section 5): letters, digits, '-' and '_'.
[[nodiscard]] std::string to_base64url(Bytes bytes);
/// Decodes base64url; returns the bytes as a string. Accepts only what to_base64url() writes: no
/// padding, no white space, no stray bits in the last character. Anything else is invalid_input.
[[nodiscard]] Result<std::string> from_base64url(std::string_view text);

}  // namespace fl
