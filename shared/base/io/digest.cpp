// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/digest.hpp"

#include <xxhash.h>
#ifdef FL_XXHASH_DISPATCHES
#include <xxh_x86dispatch.h>  // Redirects xxhash.h's names to functions that detect the CPU.
#endif

#include <fmt/format.h>

#include <cstring>

namespace fl {

namespace {

Result<std::uint8_t> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint8_t>(c - 'a' + 10);
  return Error(Errc::invalid_input, fmt::format("'{}' is not a hexadecimal digit", c));
}

std::array<std::uint8_t, 16> canonical(XXH128_hash_t hash) {
  XXH128_canonical_t out;
  XXH128_canonicalFromHash(&out, hash);
  return std::bit_cast<std::array<std::uint8_t, 16>>(out);
}

}  // namespace

Digest Digest::of(Bytes bytes) {
  Digest digest;
  digest.bytes_ = canonical(XXH3_128bits(bytes.data(), bytes.size()));
  return digest;
}

Result<Digest> Digest::parse_hex(std::string_view text) {
  if (text.size() != 32) {
    return Error(Errc::invalid_input, fmt::format("a digest has 32 digits, not {}", text.size()));
  }
  Digest digest;
  for (std::size_t i = 0; i < 16; ++i) {
    FL_TRY(const std::uint8_t high, hex_digit(text[2 * i]));
    FL_TRY(const std::uint8_t low, hex_digit(text[2 * i + 1]));
    digest.bytes_[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

Result<Digest> Digest::from_bytes(std::string_view raw) {
  if (raw.size() != 16) {
    return Error(Errc::invalid_input, fmt::format("a digest has 16 bytes, not {}", raw.size()));
  }
  Digest digest;
  std::memcpy(digest.bytes_.data(), raw.data(), 16);
  return digest;
}

std::string Digest::hex() const { return fmt::format("{:02x}", fmt::join(bytes_, "")); }

std::string Digest::raw() const {
  return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
}

std::uint64_t Digest::short_id() const {
  std::uint64_t id = 0;
  for (std::size_t i = 0; i < 8; ++i) id = id << 8 | bytes_[i];
  return id;
}

void Hasher::Free::operator()(XXH3_state_s* state) const noexcept { XXH3_freeState(state); }

Hasher::Hasher() : state_(XXH3_createState()) { reset(); }
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::reset() { XXH3_128bits_reset(state_.get()); }
void Hasher::update(Bytes bytes) { XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()); }

Digest Hasher::digest() const {
  Digest digest;
  digest.bytes_ = canonical(XXH3_128bits_digest(state_.get()));
  return digest;
}

}  // namespace fl
