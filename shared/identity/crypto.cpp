// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/crypto.hpp"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <boost/algorithm/hex.hpp>

#include <algorithm>
#include <iterator>
#include <limits>

namespace fl {
namespace {

const unsigned char* data_of(Bytes bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

Sha256 sha256(Bytes bytes) {
  Sha256 digest;
  SHA256(data_of(bytes), bytes.size(), digest.data());
  return digest;
}

Sha256 hmac_sha256(Bytes key, Bytes bytes) {
  Sha256 code;
  unsigned int length = 0;
  FL_ASSERT(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data_of(bytes),
                 bytes.size(), code.data(), &length) != nullptr);
  return code;
}

Result<void> fill_random(MutableBytes out) {
  FL_ASSERT(out.size() <= std::numeric_limits<int>::max());
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) != 1)
    return openssl_error("can't draw random bytes");
  return {};
}

std::string to_hex(Bytes bytes) {
  std::string text;
  boost::algorithm::hex_lower(text_of(bytes), std::back_inserter(text));
  return text;
}

std::string to_base64url(Bytes bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // EVP_EncodeBlock adds a NUL.
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), data_of(bytes),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  while (!text.empty() && text.back() == '=') text.pop_back();
  std::replace(text.begin(), text.end(), '+', '-');
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

Result<std::string> from_base64url(std::string_view text) {
  const Error wrong{Errc::invalid_input, "not base64url"};
  std::string padded(text);
  std::replace(padded.begin(), padded.end(), '-', '+');
  std::replace(padded.begin(), padded.end(), '_', '/');
  const std::size_t padding = (4 - text.size() % 4) % 4;
  padded.append(padding, '=');

  std::string bytes(padded.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(padded.data()),
                                     static_cast<int>(padded.size()));
  if (length != static_cast<int>(bytes.size()) || padding == 3) return wrong;
  bytes.resize(bytes.size() - padding);
  // OpenSSL skips white space and ignores stray bits. Reject both, because otherwise two texts
  // would mean the same bytes and a typo could go unnoticed.
  if (to_base64url(bytes_of(bytes)) != text) return wrong;
  return bytes;
}

bool equal_in_constant_time(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Error openssl_error(std::string_view what) {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return {Errc::internal, std::string(what) + ": " + (reason ? reason : "OpenSSL gives no reason")};
}

}  // namespace fl
