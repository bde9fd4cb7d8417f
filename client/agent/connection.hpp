// SPDX-License-Identifier: Apache-2.0
// The Connector and IdentityKeeper of fl-client: opens TLS WebSockets to the server that this
// client has joined, with the client's current certificate. On the agent's strand.
#pragma once

#include "client/agent/connector.hpp"
#include "shared/identity/client_identity.hpp"
#include "shared/net/governor.hpp"
#include "shared/net/proxy.hpp"

namespace fl::client {

class WsConnector final : public Connector, public IdentityKeeper {
 public:
  WsConnector(net::any_io_executor strand, Files& files, ClientIdentity identity, ProxyRules rules,
              Governors governors)
      : strand_(std::move(strand)),
        files_(files),
        identity_(std::move(identity)),
        rules_(std::move(rules)),
        governors_(std::move(governors)) {}

  /// Errors: conflict if a proxy or firewall on the way refuses, which ends a client at its start;
  /// unavailable instead if this client was connected before, so that it waits until that is
  /// mended.
  Awaitable<Result<std::shared_ptr<Link>>> connect() override;
  Result<std::optional<std::string>> renewal_request(const std::string& authorities) override;
  Result<void> take_renewal(const wire::Renewed& renewed) override;

  [[nodiscard]] const ClientIdentity& identity() const { return identity_; }

 private:
  net::any_io_executor strand_;
  Files& files_;
  ClientIdentity identity_;
  ProxyRules rules_;
  Governors governors_;
  bool has_connected_ = false;
};

/// The folder of a client's identity, in its state folder.
[[nodiscard]] std::filesystem::path identity_folder(const std::string& state);

}  // namespace fl::client
