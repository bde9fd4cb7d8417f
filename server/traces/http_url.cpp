// SPDX-License-Identifier: Apache-2.0
#include "server/traces/http_url.hpp"

#include <boost/beast/core/string.hpp>

#include <algorithm>

namespace fl::server {
namespace {

/// Removes the scheme from the text if the text begins with it, in any case.
bool take_scheme(std::string_view& text, std::string_view scheme) {
  if (!boost::beast::iequals(text.substr(0, scheme.size()), scheme)) return false;
  text.remove_prefix(scheme.size());
  return true;
}

bool has_port(std::string_view authority) {
  const auto colon = authority.rfind(':');
  const auto bracket = authority.rfind(']');
  return colon != authority.npos && (bracket == authority.npos || colon > bracket);
}

}  // namespace

Result<HttpUrl> parse_http_url(std::string_view text) {
  const auto wrong = [](std::string_view why) {
    return Error(Errc::invalid_input,
                 "this is not http[s]://HOST[:PORT][/PATH]: " + std::string(why));
  };
  HttpUrl url;
  url.is_tls = take_scheme(text, "https://");
  if (!url.is_tls && !take_scheme(text, "http://"))
    return wrong("it begins with neither http:// nor https://");
  const std::string_view authority = text.substr(0, text.find_first_of("/?#"));
  if (authority.find('@') != authority.npos) return wrong("a login can't stand in it");
  const std::string_view rest = text.substr(authority.size());
  const auto is_plain = [](char c) { return c > ' ' && c < '\x7f' && c != '#'; };
  if (!std::ranges::all_of(rest, is_plain))
    return wrong("its path has a space, a '#', or a character that is not ASCII");
  if (rest.starts_with('/')) {
    url.target = rest;
  } else {
    url.target += rest;
  }
  std::string place(authority);
  if (!has_port(authority)) place += url.is_tls ? ":443" : ":80";
  const auto address = parse_server_address(place);
  if (!address) return wrong(address.error().message());
  url.address = *address;
  return url;
}

std::string to_string(const HttpUrl& url) {
  return (url.is_tls ? "https://" : "http://") + to_string(url.address) + url.target;
}

}  // namespace fl::server
