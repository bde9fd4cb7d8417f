// SPDX-License-Identifier: Apache-2.0
// Conversation: what an agent says to its server on one connection after the other, and what was
// said on this one. It begins a connection (Hello, Welcome, Ready), sends messages, and renews the
// client's certificate.
//
//   begin(link) -> hello() -> ready() -> number() counts, listen() -> send() ...
//                        \-> decline()   the connection ends
//
// All members are called on the agent's strand.
#pragma once

#include "client/agent/connector.hpp"
#include "client/agent/events.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/params/layout.hpp"
#include "shared/wire/features.hpp"
#include "shared/wire/link.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace fl::client {

class Conversation {
 public:
  /// `keeper` may be null: then no certificate is renewed. `masks`: this client can take part in
  /// masked rounds, which Hello says.
  /// The client begins now: what Hello says of its uptime counts from here.
  explicit Conversation(IdentityKeeper* keeper, bool masks = false)
      : keeper_(keeper), masks_(masks) {}

  /// Takes a new connection. If the one before it ended between two runs, renews the certificate
  /// first: while no run is on, the server ends each session after Hello, and a client that waits
  /// for the next run may wait longer than its certificate lives.
  Awaitable<Result<void>> begin(std::shared_ptr<Link> link);
  /// Sends Hello and returns the server's Welcome, whose texts are not checked yet. `hello` has the
  /// role and model of this client; the rest is filled in. Errors: cancelled, if no run is on;
  /// unavailable; unauthenticated, if the server rejects this client; protocol.
  Awaitable<Result<wire::Welcome>> hello(wire::Hello hello);
  /// The features in the server's newest Welcome.
  [[nodiscard]] const Features& server_features() const { return server_features_; }
  /// Accepts the run. From here on the connection counts.
  Awaitable<Result<void>> ready(wire::Ready ready);
  /// Ends the connection, because of `why` this client can't take part in the run. The server
  /// records the reason in its history, so it is told once per run. `others`: this client's
  /// tensors, if they are not the run's; else null. Returns `why`, or the server's answer, which
  /// names the tensors that differ.
  Awaitable<Error> decline(std::string run_key, Error why, const Layout* others);
  /// Whether the server knows already why this client declined the run.
  [[nodiscard]] bool has_declined(const std::string& run_key) const {
    return !run_key.empty() && declined_run_ == run_key;
  }

  /// Passes the messages of this connection to `events` until it ends, and then its error.
  Awaitable<void> listen(AgentEvents& events);
  Awaitable<Result<void>> send(wire::Header header);
  /// Sends the Bye of a client that leaves. `why`: its error, for the server's user; "": none.
  Awaitable<void> leave(std::string why = "");
  void close();
  [[nodiscard]] Link& link() { return *link_; }
  /// The connections that have become ready so far; the number of the newest.
  [[nodiscard]] std::uint64_t number() const { return number_; }

  /// Asks for a new certificate if one is due, and the server renews them.
  Awaitable<Result<void>> check_renewal();
  /// Stores the certificate, if this client has asked for it. Without room on the disk the next
  /// check asks again; the old certificate is valid until then.
  [[nodiscard]] Result<void> take_renewal(const wire::Renewed& renewed);
  /// Writes what the server wants the user to know into the log, a few times in a minute at most.
  void take_notice(const wire::Notice& notice);

 private:
  Awaitable<Result<void>> renew_between_runs();

  IdentityKeeper* keeper_;
  const bool masks_;
  std::shared_ptr<Link> link_;
  const TimePoint began_at_ = Clock::now();
  std::uint64_t number_ = 0;
  std::string authorities_;  // As the Welcome of this connection names them.
  Features server_features_ = Features::before_lists(End::server);
  LineLimit notices_;
  std::string declined_run_;      // The last run that this client declined.
  bool wants_renewal_ = false;    // This client has asked for a new certificate.
  bool is_between_runs_ = false;  // The last answer to Hello: no run is on.
};

/// A reason of the peer's, or one that the peer is told, short and safe to show.
[[nodiscard]] std::string shown_reason(std::string_view text);
/// The error that a Bye of the server's means. Not for one whose cause is FINISHED.
[[nodiscard]] Error error_of(const wire::Bye& bye);

}  // namespace fl::client
