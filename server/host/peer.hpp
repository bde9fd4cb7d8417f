// SPDX-License-Identifier: Apache-2.0
// A client's session, as its host sees it (session_host.hpp). The server's sessions, which fl-sim
// has too, and fakes of the tests implement it.
#pragma once

#include "proto/wire.pb.h"
#include "server/host/hello_facts.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/params/column_summary.hpp"
#include "shared/params/metric.hpp"
#include "shared/wire/features.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace fl::server {

/// All methods may be called from any thread; none blocks.
class Peer {
 public:
  /// The client's name comes from its certificate. The rest is what the client said of itself.
  struct Facts : HelloFacts {
    std::string name;
    std::string
        serial;  // The certificate's serial number; empty where the link has no certificate.
    std::uint64_t train_examples = 0;
    std::uint64_t holdout_examples = 0;
    std::vector<MetricKind> metrics = {};  // Checked by join().
    /// From a trainer that was here before there was a model; checked by join().
    std::vector<ColumnSummary> summaries = {};
    Features features = Features::before_lists(End::client);
    double certificate_ends_at = 0;  // Unix seconds; 0 where the link has no certificate.
    /// How long ago its program began, as it says; zero: it does not say.
    Duration uptime{};
  };

  virtual ~Peer() = default;
  /// The facts do not change after join().
  [[nodiscard]] virtual const Facts& facts() const = 0;
  /// Sends a control message, in order. Drops the session when too many messages wait.
  virtual void post(wire::Header header) = 0;
  /// Says Bye and closes.
  virtual void dismiss(wire::Bye::Cause cause, const std::string& reason) = 0;
  /// Bytes since the session began, as Link counts them: from the client, and to it.
  [[nodiscard]] virtual std::uint64_t bytes_up() const = 0;
  [[nodiscard]] virtual std::uint64_t bytes_down() const = 0;
};

}  // namespace fl::server
