// SPDX-License-Identifier: Apache-2.0
// Serves the listener's connections: TLS contexts, enrolment, admission and sessions. It also looks
// for clients that another process has revoked, and ends their sessions. Any thread: all access to
// the store goes through StoreThread.
#pragma once

#include "server/history/history_changes.hpp"
#include "server/history/store_thread.hpp"
#include "server/host/session_hosts.hpp"
#include "server/net/listener.hpp"
#include "server/net/member_places.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/line_limit.hpp"
#include "shared/identity/authority.hpp"
#include "shared/identity/enrolment.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fl::server {

/// Limits how often each client may use its token again, after it has lost the answer.
class RepeatedEnrolments {
 public:
  /// The error is `unavailable`.
  [[nodiscard]] Result<void> take(const std::string& client);

 private:
  std::map<std::string, TokenBucket> rates_;
};

/// The tokens and clients in the history, as Enroller reads them. On the store's thread.
class StoreTokenBook final : public TokenBook {
 public:
  StoreTokenBook(Members& members, RepeatedEnrolments& repeats)
      : members_(members), repeats_(repeats) {}
  Result<std::optional<Token>> find_token(std::string_view id) override;
  Result<bool> is_revoked(std::string_view client) override;
  Result<void> use_token(std::string_view id, std::string_view client, std::string_view serial,
                         std::string_view key_digest, double now) override;

 private:
  Members& members_;
  RepeatedEnrolments& repeats_;
};

class Admission final : public ConnectionHandler {
 public:
  /// `store` belongs to no run. Clients whose certificates are valid get sessions with one of the
  /// `hosts`.
  Admission(const SessionHosts& hosts, StoreThread& store, const Authority& authority,
            std::vector<std::string> names, std::size_t sessions_max);

  /// Makes the server's certificate. Called at the start, and again when the certificate is soon
  /// due.
  [[nodiscard]] Result<void> renew_certificate();

  std::shared_ptr<net::ssl::context> tls() override;
  Awaitable<Enrolment> enrol(std::string body) override;
  Awaitable<Result<Place>> admit(std::string name, std::string serial) override;
  Awaitable<void> serve(std::shared_ptr<Link> link, Place place, std::string name,
                        std::string serial) override;

  /// Acts, until `stop` is set, on what others have written into the history (revoked clients, a
  /// run that somebody has ended) as soon as `changes` tells it; renews the server's certificate,
  /// and records refusals that were only counted. On the hosts' strand.
  Awaitable<void> watch(HistoryChanges& changes, std::shared_ptr<std::atomic<bool>> stop);
  [[nodiscard]] std::size_t sessions() const { return places_->count(); }

 private:
  [[nodiscard]] bool is_certificate_due();
  /// What a look at the history found: its version, and the run whose host took it.
  struct HistorySeen {
    std::int64_t version = -1;
    RunId newest_run = 0;
  };
  Awaitable<void> follow_history(HistorySeen& seen);
  void note_refusal(const std::string& kind, const std::string& text);
  void record_refusal(std::string text);
  void report(EventLevel level, std::string text);
  Awaitable<Result<wire::Renewed>> renew(std::string name, std::string serial, std::string csr_pem);

  const SessionHosts& hosts_;
  StoreThread& store_;
  const Authority& authority_;
  const std::string authorities_;   // The digest of the trusted authorities (wire::Welcome).
  std::vector<std::string> names_;  // The server's own, for its certificate.
  std::shared_ptr<MemberPlaces> places_;
  LineLimit refusals_;
  RepeatedEnrolments repeats_;  // Used on the store's thread.
  Mutex mutex_;
  std::shared_ptr<net::ssl::context> tls_ FL_GUARDED_BY(mutex_);
  ServerCertificate certificate_ FL_GUARDED_BY(mutex_);  // The certificate that `tls_` shows.
};

}  // namespace fl::server
