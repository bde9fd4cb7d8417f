// SPDX-License-Identifier: Apache-2.0
// 32 secret bytes, which are overwritten when nobody needs them any more. One thread at a time.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <array>
#include <cstddef>
#include <utility>

namespace fl::secure {

inline constexpr std::size_t key_bytes = 32;

/// A public key, a digest, or another value that may be known to all.
using Public = std::array<std::byte, key_bytes>;

class Secret {
 public:
  /// Zeros.
  Secret() = default;
  /// Requires: 32 bytes.
  explicit Secret(Bytes bytes);
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  /// Errors: internal, if the generator of random bytes fails.
  [[nodiscard]] static Result<Secret> draw();

  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] MutableBytes bytes() { return bytes_; }
  /// In a time that does not depend on the bytes.
  bool operator==(const Secret& other) const;

 private:
  std::array<std::byte, key_bytes> bytes_{};
};

}  // namespace fl::secure
