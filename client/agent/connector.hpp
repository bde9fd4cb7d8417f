// SPDX-License-Identifier: Apache-2.0
// The two interfaces through which an agent reaches its server: Connector opens connections, and
// IdentityKeeper renews the client's certificate. Both are called on the agent's strand.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/wire/link.hpp"

#include <memory>
#include <optional>
#include <string>

namespace fl::client {

/// Opens connections to the server. The link runs on the agent's strand.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Awaitable<Result<std::shared_ptr<Link>>> connect() = 0;
};

/// Renews the client's certificate.
class IdentityKeeper {
 public:
  virtual ~IdentityKeeper() = default;
  /// Returns a signing request (PEM) if the certificate must be renewed now, else nothing.
  /// `authorities`: which are to be trusted now (wire::Welcome::authorities); "": not known.
  virtual Result<std::optional<std::string>> renewal_request(const std::string& authorities) = 0;
  /// Stores the new certificate that the server has sent.
  virtual Result<void> take_renewal(const wire::Renewed& renewed) = 0;
};

}  // namespace fl::client
