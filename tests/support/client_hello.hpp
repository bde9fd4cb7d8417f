// SPDX-License-Identifier: Apache-2.0
// The first bytes that a TLS client sends, as OpenSSL makes them.
#pragma once

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <array>
#include <memory>
#include <string>

namespace fl::test {

inline std::string make_client_hello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  BIO* const sent = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), sent);
  SSL_connect(ssl.get());  // Waits for an answer now.
  std::array<char, 4096> room{};
  const int size = BIO_read(sent, room.data(), room.size());
  return {room.data(), static_cast<std::size_t>(size > 0 ? size : 0)};
}

}  // namespace fl::test
