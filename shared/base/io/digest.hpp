// XXH3-128: what tells that two ends hold the same bytes. It guards against accidents, not against
// an enemy: the peer is authenticated, and the link is TLS. At 10 GB/s and more it costs less than
// a copy, where SHA-256 would cost as much as the encryption.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"

#include <array>
#include <compare>
#include <memory>
#include <string>

struct XXH3_state_s;

namespace fl {

/// 16 bytes in XXH3's canonical (big-endian) order, so that hex() equals what `xxhsum -H2` prints.
class Digest {
 public:
  Digest() = default;
  static Digest of(Bytes bytes);
  /// 32 hexadecimal digits, or 16 raw bytes.
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

/// The same digest of bytes that come in pieces. One thread at a time.
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
