// SPDX-License-Identifier: Apache-2.0
#include "shared/identity/crypto.hpp"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <limits>
#include <string>

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

bool equal_in_constant_time(Bytes a, Bytes b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Error openssl_error(std::string_view what) {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return {Errc::internal, std::string(what) + ": " + (reason ? reason : "OpenSSL gives no reason")};
}

}  // namespace fl
