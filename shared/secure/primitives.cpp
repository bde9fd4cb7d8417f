// SPDX-License-Identifier: Apache-2.0
#include "shared/secure/primitives.hpp"

#include "shared/identity/crypto.hpp"
#include "shared/identity/x509.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fl::secure {

namespace {

using ContextPtr = std::unique_ptr<EVP_PKEY_CTX, FreeWith<EVP_PKEY_CTX_free>>;
using DigestPtr = std::unique_ptr<EVP_MD_CTX, FreeWith<EVP_MD_CTX_free>>;
using CipherPtr = std::unique_ptr<EVP_CIPHER_CTX, FreeWith<EVP_CIPHER_CTX_free>>;
using KdfPtr = std::unique_ptr<EVP_KDF, FreeWith<EVP_KDF_free>>;
using KdfContextPtr = std::unique_ptr<EVP_KDF_CTX, FreeWith<EVP_KDF_CTX_free>>;

constexpr std::size_t block_bytes = 16;         // An AES block: two words of a mask.
constexpr std::size_t mask_piece_words = 1024;  // Fits into the first cache beside what is masked.

const unsigned char* data_of(Bytes bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* data_of(MutableBytes bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

KeyPtr secret_key(int kind, const Secret& secret) {
  KeyPtr key(EVP_PKEY_new_raw_private_key(kind, nullptr, data_of(secret.bytes()), key_bytes));
  FL_ASSERT(key != nullptr);
  return key;
}

Public public_half(const EVP_PKEY& key) {
  Public half;
  std::size_t length = half.size();
  FL_ASSERT(EVP_PKEY_get_raw_public_key(&key, data_of(MutableBytes(half)), &length) == 1 &&
            length == half.size());
  return half;
}

}  // namespace

Secret::Secret(Bytes bytes) {
  FL_ASSERT(bytes.size() == bytes_.size());
  std::ranges::copy(bytes, bytes_.begin());
}

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Result<Secret> Secret::draw() {
  Secret drawn;
  FL_CHECK(fill_random(drawn.bytes()));
  return drawn;
}

bool Secret::operator==(const Secret& other) const {
  return equal_in_constant_time(bytes_, other.bytes_);
}

Result<void> check_primitives() {
  const auto missing = [](std::string_view name) {
    return Error(Errc::internal, fmt::format("this OpenSSL has no {}, which secure aggregation "
                                             "needs",
                                             name));
  };
  for (const char* name : {"X25519", "ED25519"}) {
    const ContextPtr context(EVP_PKEY_CTX_new_from_name(nullptr, name, nullptr));
    if (!context || EVP_PKEY_keygen_init(context.get()) != 1) return missing(name);
  }
  for (const char* name : {"AES-256-CTR", "ChaCha20-Poly1305"}) {
    const std::unique_ptr<EVP_CIPHER, FreeWith<EVP_CIPHER_free>> cipher(
        EVP_CIPHER_fetch(nullptr, name, nullptr));
    if (!cipher) return missing(name);
  }
  const KdfPtr kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  return kdf ? success() : missing("HKDF");
}

Public digest_of(std::initializer_list<Bytes> parts) {
  const DigestPtr context(EVP_MD_CTX_new());
  FL_ASSERT(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  for (const Bytes part : parts) {
    const std::uint64_t length = part.size();
    FL_ASSERT(EVP_DigestUpdate(context.get(), &length, sizeof length) == 1 &&
              EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1);
  }
  Public digest;
  FL_ASSERT(EVP_DigestFinal_ex(context.get(), data_of(MutableBytes(digest)), nullptr) == 1);
  return digest;
}

void derive(Bytes secret, const Public& salt, std::string_view info, MutableBytes out) {
  const KdfPtr kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const KdfContextPtr context(EVP_KDF_CTX_new(kdf.get()));
  FL_ASSERT(context != nullptr);
  const auto octets = [](const char* name, Bytes bytes) {
    // OpenSSL takes what it only reads through a pointer that is not const.
    return OSSL_PARAM_construct_octet_string(name, const_cast<unsigned char*>(data_of(bytes)),
                                             bytes.size());
  };
  char sha256[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, sha256, 0),
      octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_SALT, salt),
      octets(OSSL_KDF_PARAM_INFO, bytes_of(info)), OSSL_PARAM_construct_end()};
  FL_ASSERT(EVP_KDF_derive(context.get(), data_of(out), out.size(), parameters) == 1);
}

Secret derive(Bytes secret, const Public& salt, std::string_view info) {
  Secret out;
  derive(secret, salt, info, out.bytes());
  return out;
}

// X25519 and Ed25519 -----------------------------------------------------------------------------

Public agreement_key(const Secret& secret) {
  return public_half(*secret_key(EVP_PKEY_X25519, secret));
}

Result<Secret> agree(const Secret& secret, const Public& other) {
  const KeyPtr own = secret_key(EVP_PKEY_X25519, secret);
  const KeyPtr theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, data_of(Bytes(other)), other.size()));
  const ContextPtr context(EVP_PKEY_CTX_new(own.get(), nullptr));
  FL_ASSERT(theirs && context && EVP_PKEY_derive_init(context.get()) == 1 &&
            EVP_PKEY_derive_set_peer(context.get(), theirs.get()) == 1);
  Secret shared;
  std::size_t length = key_bytes;
  // OpenSSL fails for a shared secret of zeros, and only then.
  if (EVP_PKEY_derive(context.get(), data_of(shared.bytes()), &length) == 1) return shared;
  [[maybe_unused]] const Error cleared = openssl_error("X25519");
  return Error(Errc::invalid_input, "a public key is of small order");
}

Public signing_key(const Secret& secret) {
  return public_half(*secret_key(EVP_PKEY_ED25519, secret));
}

Signature sign(const Secret& secret, Bytes message) {
  const KeyPtr key = secret_key(EVP_PKEY_ED25519, secret);
  const DigestPtr context(EVP_MD_CTX_new());
  Signature signature;
  std::size_t length = signature.size();
  FL_ASSERT(context &&
            EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1 &&
            EVP_DigestSign(context.get(), data_of(MutableBytes(signature)), &length,
                           data_of(message), message.size()) == 1);
  return signature;
}

bool is_signed(const Public& key, Bytes message, const Signature& signature) {
  const KeyPtr theirs(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, data_of(Bytes(key)), key.size()));
  const DigestPtr context(EVP_MD_CTX_new());
  FL_ASSERT(theirs && context &&
            EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, theirs.get()) == 1);
  const bool is_good = EVP_DigestVerify(context.get(), data_of(Bytes(signature)), signature.size(),
                                        data_of(message), message.size()) == 1;
  if (!is_good) [[maybe_unused]]
    const Error cleared = openssl_error("Ed25519");
  return is_good;
}

// ChaCha20-Poly1305 ------------------------------------------------------------------------------

namespace {

constexpr unsigned char no_nonce[12] = {};

/// Runs the cipher over `context` and `message` into `out`.
CipherPtr run_cipher(const Secret& key, bool seals, Bytes message, Bytes context,
                     MutableBytes out) {
  CipherPtr cipher(EVP_CIPHER_CTX_new());
  int length = 0;
  FL_ASSERT(cipher &&
            EVP_CipherInit_ex2(cipher.get(), EVP_chacha20_poly1305(), data_of(key.bytes()),
                               no_nonce, seals ? 1 : 0, nullptr) == 1 &&
            EVP_CipherUpdate(cipher.get(), nullptr, &length, data_of(context),
                             static_cast<int>(context.size())) == 1 &&
            EVP_CipherUpdate(cipher.get(), data_of(out), &length, data_of(message),
                             static_cast<int>(message.size())) == 1);
  return cipher;
}

}  // namespace

std::vector<std::byte> seal(const Secret& key, Bytes message, Bytes context) {
  std::vector<std::byte> sealed(message.size() + seal_bytes);
  const CipherPtr cipher = run_cipher(key, true, message, context, sealed);
  int length = 0;
  std::byte* const tag = sealed.data() + message.size();
  FL_ASSERT(EVP_CipherFinal_ex(cipher.get(), reinterpret_cast<unsigned char*>(tag), &length) == 1 &&
            EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_GET_TAG, seal_bytes, tag) == 1);
  return sealed;
}

Result<std::vector<std::byte>> open_sealed(const Secret& key, Bytes sealed, Bytes context) {
  const Error wrong(Errc::corrupt, "a sealed message is not for this key, or was changed");
  if (sealed.size() < seal_bytes) return wrong;
  const Bytes coded = sealed.first(sealed.size() - seal_bytes);
  std::vector<std::byte> message(coded.size());
  const CipherPtr cipher = run_cipher(key, false, coded, context, message);
  std::array<std::byte, seal_bytes> tag;
  std::ranges::copy(sealed.last(seal_bytes), tag.begin());
  unsigned char rest[1];
  int length = 0;
  if (EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_AEAD_SET_TAG, seal_bytes, tag.data()) == 1 &&
      EVP_CipherFinal_ex(cipher.get(), rest, &length) == 1)
    return message;
  OPENSSL_cleanse(message.data(), message.size());
  [[maybe_unused]] const Error cleared = openssl_error("ChaCha20-Poly1305");
  return wrong;
}

// Masks ------------------------------------------------------------------------------------------

void MaskStream::FreeCipher::operator()(evp_cipher_ctx_st* cipher) const noexcept {
  EVP_CIPHER_CTX_free(cipher);
}

MaskStream::MaskStream(const Secret& key) : cipher_(EVP_CIPHER_CTX_new()), key_(key) { seek(0); }

void MaskStream::seek(std::uint64_t block) {
  // The counter is the whole block, big-endian.
  unsigned char counter[block_bytes] = {};
  for (int i = 0; i < 8; ++i)
    counter[block_bytes - 1 - i] = static_cast<unsigned char>(block >> (8 * i));
  FL_ASSERT(cipher_ && EVP_EncryptInit_ex2(cipher_.get(), EVP_aes_256_ctr(), data_of(key_.bytes()),
                                           counter, nullptr) == 1);
  next_block_ = block;
}

void MaskStream::apply(Way way, std::uint64_t first, std::span<std::uint64_t> words) {
  static constexpr std::array<std::byte, (mask_piece_words + 2) * sizeof(std::uint64_t)> zeros{};
  std::array<std::uint64_t, mask_piece_words + 2> stream;
  while (!words.empty()) {
    const std::uint64_t block = first / 2;
    const std::size_t skipped = first % 2;
    const std::size_t count = std::min(words.size(), mask_piece_words);
    const std::size_t blocks = (skipped + count + 1) / 2;
    if (block != next_block_) seek(block);
    int length = 0;
    FL_ASSERT(EVP_EncryptUpdate(cipher_.get(), reinterpret_cast<unsigned char*>(stream.data()),
                                &length, data_of(Bytes(zeros)),
                                static_cast<int>(blocks * block_bytes)) == 1);
    next_block_ = block + blocks;
    const std::uint64_t* const mask = stream.data() + skipped;
    if (way == Way::add) {
      for (std::size_t i = 0; i < count; ++i) words[i] += mask[i];
    } else {
      for (std::size_t i = 0; i < count; ++i) words[i] -= mask[i];
    }
    words = words.subspan(count);
    first += count;
  }
  OPENSSL_cleanse(stream.data(), sizeof stream);
}

}  // namespace fl::secure
