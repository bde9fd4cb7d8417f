// SPDX-License-Identifier: Apache-2.0
// Posts to one HTTP service, with a new connection each time. Redirects are not followed. A service
// with https must have a certificate for its host, of an authority that this machine trusts or of
// one in a file. https goes through a proxy where the environment names one (ProxyRules), http
// never does. Any strand, also several at the same time.
#pragma once

#include "server/traces/http_url.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/net/http.hpp"
#include "shared/net/proxy.hpp"

#include <boost/asio/ssl/context.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Whether a header with this name and value may be sent. Errors are invalid_input and don't repeat
/// the value, because it may be a secret.
[[nodiscard]] Result<void> check_http_header(std::string_view name, std::string_view value);

class HttpClient {
 public:
  struct Options {
    HttpUrl url;
    HttpHeaders headers;         // Added to each request; they have passed check_http_header().
    std::string authority_file;  // PEM; "": the authorities that this machine trusts.
    ProxyRules proxies;
    std::uint64_t answer_bytes_max = 0;  // The most bytes of an answer's body.
  };

  struct Answer {
    unsigned status = 0;
    std::string retry_after;  // The header of this name; "": there is none.
    std::string body;
  };

  /// Errors: invalid_input for the authority's file; io without one.
  static Result<std::unique_ptr<HttpClient>> make(Options options);

  [[nodiscard]] const HttpUrl& url() const { return options_.url; }

  /// Any answer is a result, whatever its status. Errors: those of dial(); unavailable when the
  /// connection broke; deadline after `limit`; unauthenticated for the service's certificate;
  /// protocol when it does not speak HTTP, or its answer is too long.
  Awaitable<Result<Answer>> post(std::string content_type, std::string body, Duration limit);

 private:
  HttpClient(Options options, net::ssl::context context)
      : options_(std::move(options)), context_(std::move(context)) {}
  Awaitable<Result<void>> shake_hands(TlsStream& stream);
  [[nodiscard]] std::string request_of(const std::string& content_type,
                                       const std::string& body) const;

  Options options_;
  net::ssl::context context_;
};

}  // namespace fl::server
