// SPDX-License-Identifier: Apache-2.0
// XXH3-128 digests, by which two ends check that they hold the same bytes. They detect accidents,
// not attacks: the peer is authenticated and the link is TLS. XXH3 runs at 10 GB/s and more, so a
// digest costs less than a copy; SHA-256 would cost as much as the encryption.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <array>
#include <compare>
#include <memory>
#include <string>

struct XXH3_state_s;

namespace fl {

/// 16 bytes in XXH3's canonical (big-endian) order. hex() equals the output of `xxhsum -H2`. The
/// default is all zeros.
class Digest {
 public:
  Digest() = default;
  static Digest of(Bytes bytes);
  /// From 32 lower-case hexadecimal digits, or from 16 raw bytes. Anything else is invalid_input.
  static Result<Digest> parse_hex(std::string_view text);
  static Result<Digest> from_bytes(std::string_view raw);

  [[nodiscard]] std::string hex() const;
  [[nodiscard]] std::string raw() const;
  /// The first eight bytes as a number, for seeds and short names.
  [[nodiscard]] std::uint64_t short_id() const;
  [[nodiscard]] bool is_zero() const { return *this == Digest{}; }

  auto operator<=>(const Digest&) const = default;

 private:
  friend class Hasher;
  std::array<std::uint8_t, 16> bytes_{};
};

/// Computes a digest of bytes that come in pieces. One thread at a time.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(Bytes bytes);
  void reset();
  [[nodiscard]] Digest digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace fl
