// SPDX-License-Identifier: Apache-2.0
// The address of an HTTP service, written as http[s]://HOST[:PORT][/PATH].
#pragma once

#include "shared/net/server_address.hpp"

#include <string>
#include <string_view>

namespace fl::server {

struct HttpUrl {
  bool is_tls = false;  // The scheme is https.
  ServerAddress address;
  std::string target = "/";  // The path, with a query if there is one.

  bool operator==(const HttpUrl&) const = default;
};

/// Parses a URL. Without a port it is 80, or 443 for https. A login ("user:password@") and a
/// fragment ("#…") are refused. Errors are invalid_input and don't repeat the text, because it may
/// have a password.
[[nodiscard]] Result<HttpUrl> parse_http_url(std::string_view text);

/// Writes the URL with its port, as parse_http_url() reads it.
[[nodiscard]] std::string to_string(const HttpUrl& url);

}  // namespace fl::server
