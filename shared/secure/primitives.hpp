// SPDX-License-Identifier: Apache-2.0
// The primitives of secure aggregation, all from OpenSSL: X25519 (RFC 7748), Ed25519 (RFC 8032),
// HKDF with SHA-256 (RFC 5869), ChaCha20-Poly1305 (RFC 8439) and AES-256 in counter mode (NIST SP
// 800-38A). Pure but for allocations; any thread.
//
// A failure of OpenSSL itself ends the program: memory is short, or a build of OpenSSL lacks one of
// these algorithms, which start-up checks (check_primitives()).
#pragma once

#include "shared/base/error.hpp"
#include "shared/secure/secret.hpp"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX.

namespace fl::secure {

/// Errors: internal, naming the algorithm that this OpenSSL lacks (as with its FIPS provider only).
[[nodiscard]] Result<void> check_primitives();

/// SHA-256 of these parts, each with its length before it (u64, little-endian), so that no two
/// lists of parts have the same bytes.
[[nodiscard]] Public digest_of(std::initializer_list<Bytes> parts);

/// HKDF-SHA-256 of a secret: `length` bytes, at most 255 * 32, for the purpose that `info` says.
/// The salt is the transcript of the attempt, or zeros before there is one.
void derive(Bytes secret, const Public& salt, std::string_view info, MutableBytes out);
[[nodiscard]] Secret derive(Bytes secret, const Public& salt, std::string_view info);

// X25519. Every 32 bytes are a secret key.

[[nodiscard]] Public agreement_key(const Secret& secret);
/// What both ends of an exchange know. Errors: invalid_input, for a public key of small order,
/// whose secret everybody knows (RFC 7748, section 6.1).
[[nodiscard]] Result<Secret> agree(const Secret& secret, const Public& other);

// Ed25519. Every 32 bytes are a secret key.

inline constexpr std::size_t signature_bytes = 64;
using Signature = std::array<std::byte, signature_bytes>;

[[nodiscard]] Public signing_key(const Secret& secret);
[[nodiscard]] Signature sign(const Secret& secret, Bytes message);
/// A key that is not a point of the curve signs nothing.
[[nodiscard]] bool is_signed(const Public& key, Bytes message, const Signature& signature);

// ChaCha20-Poly1305 with a nonce of zeros: so each key may seal one message only.

inline constexpr std::size_t seal_bytes = 16;  // The tag.

/// The ciphertext and its tag. `context`: what the receiver must know as well (associated data).
[[nodiscard]] std::vector<std::byte> seal(const Secret& key, Bytes message, Bytes context);
/// Errors: corrupt, if key, bytes or context are not those of seal().
[[nodiscard]] Result<std::vector<std::byte>> open_sealed(const Secret& key, Bytes sealed,
                                                         Bytes context);

/// A mask: the words of an AES-256-CTR keystream whose counter begins at 0, little-endian. So word
/// w is the same wherever one begins to read. One thread at a time.
class MaskStream {
 public:
  explicit MaskStream(const Secret& key);
  enum class Way { add, subtract };
  /// words[i] += (or -=) word first + i of the stream, modulo 2^64. Cheapest where `first` goes on
  /// from the last call.
  void apply(Way way, std::uint64_t first, std::span<std::uint64_t> words);

 private:
  struct FreeCipher {
    void operator()(evp_cipher_ctx_st* cipher) const noexcept;
  };
  void seek(std::uint64_t block);

  std::unique_ptr<evp_cipher_ctx_st, FreeCipher> cipher_;
  Secret key_;
  std::uint64_t next_block_ = 0;  // Of 16 bytes: where the cipher stands.
};

}  // namespace fl::secure
