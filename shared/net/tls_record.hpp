// SPDX-License-Identifier: Apache-2.0
// Sizes of TLS records (RFC 8446, section 5.1).
#pragma once

#include <cstddef>

namespace fl::tls_record {

inline constexpr std::size_t head_bytes = 5;  // Type, version of two bytes, size of two.
inline constexpr std::size_t payload_bytes_max = 16 << 10;

}  // namespace fl::tls_record
