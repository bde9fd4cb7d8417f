// SPDX-License-Identifier: Apache-2.0
// What the admin pages read from a request, and why they refuse those that another web page has
// made. Pure functions; any thread.
#pragma once

#include "server/admin/answer.hpp"
#include "shared/net/http.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fl::server {

/// The value of a header; "" if there is none.
[[nodiscard]] std::string_view header_of(const HttpRequest& request, http::field name);
[[nodiscard]] std::string_view header_of(const HttpRequest& request, std::string_view name);

/// The part of the address before "?", and the part behind it.
[[nodiscard]] std::pair<std::string, std::string> address_of(const HttpRequest& request);

/// The cookie of a session; "" if there is none.
[[nodiscard]] std::string_view session_of(const HttpRequest& request);
/// The header that sets a session's cookie in a browser; with "" the browser forgets the cookie
/// that it has.
[[nodiscard]] std::string set_session(const HttpRequest& request, std::string_view value);

/// The token of a login, {"token": "..."}; none if the body is something else.
[[nodiscard]] std::optional<std::string> login_token_of(const HttpRequest& request);

/// Why this request may not change anything, whoever makes it; nothing if it may. A page of another
/// site can make a browser send a form here with our cookie, but it can't send JSON, and the
/// browser says where the form comes from.
[[nodiscard]] std::optional<PageAnswer> refuse_foreign(const HttpRequest& request);

}  // namespace fl::server
