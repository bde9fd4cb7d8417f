// SPDX-License-Identifier: Apache-2.0
#include "client/agent/connection.hpp"

#include "shared/wire/tls_context.hpp"
#include "shared/wire/ws_link.hpp"

namespace fl::client {

std::filesystem::path identity_folder(const std::string& state) {
  return std::filesystem::path(state) / "identity";
}

Awaitable<Result<std::shared_ptr<Link>>> WsConnector::connect() {
  auto context = client_context(identity_);
  if (!context) co_return context.error();
  // `context` may end with this coroutine: the connection keeps what it needs of it.
  auto link = co_await connect_ws(strand_, identity_.server(), rules_, governors_, *context);
  const bool may_pass = has_connected_ && !link && link.error().code() == Errc::conflict;
  if (may_pass) co_return Error(Errc::unavailable, link.error().message());
  if (link) has_connected_ = true;
  co_return link;
}

Result<std::optional<std::string>> WsConnector::renewal_request(const std::string& authorities) {
  const Sha256 ours = sha256(bytes_of(std::string_view(identity_.ca_pem())));
  const bool are_ours =
      authorities.empty() || authorities == text_of(std::as_bytes(std::span(ours)));
  if (are_ours && !identity_.renew_due(Clock::unix_seconds())) return std::optional<std::string>();
  FL_TRY(auto request, ClientIdentity::request_certificate(files_, identity_.folder()));
  return std::optional<std::string>(std::move(request));
}

Result<void> WsConnector::take_renewal(const wire::Renewed& renewed) {
  return identity_.finish_renewing(files_, renewed.certificate_pem(), renewed.ca_pem());
}

}  // namespace fl::client
