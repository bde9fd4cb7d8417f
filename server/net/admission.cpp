// SPDX-License-Identifier: Apache-2.0
#include "server/net/admission.hpp"

#include "server/net/session.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/tls_context.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

std::string digest_of(const std::string& text) {
  const Sha256 digest = sha256(bytes_of(std::string_view(text)));
  return std::string(text_of(std::as_bytes(std::span(digest))));
}

}  // namespace

Admission::Admission(const SessionHosts& hosts, StoreThread& store, const Authority& authority,
                     std::vector<std::string> names, std::size_t sessions_max)
    : hosts_(hosts),
      store_(store),
      authority_(authority),
      authorities_(digest_of(authority.trusted_pem())),
      names_(std::move(names)),
      places_(std::make_shared<MemberPlaces>(sessions_max)) {}

Result<std::optional<TokenBook::Token>> StoreTokenBook::find_token(std::string_view id) {
  FL_TRY(const auto found, members_.find_token(id));
  if (!found) return std::optional<Token>();
  return std::optional<Token>(
      Token{found->name, found->secret_hash, found->expires_at, found->used_at, found->key_digest});
}

Result<bool> StoreTokenBook::is_revoked(std::string_view client) {
  FL_TRY(const auto found, members_.find(client));
  return found && found->revoked_at != 0;
}

Result<void> RepeatedEnrolments::take(const std::string& client) {
  const auto rate =
      rates_
          .try_emplace(client, limits::repeated_enrolments, limits::repeated_enrolments_per_s, 0.0)
          .first;
  if (rate->second.take(1)) return {};
  return Error(
      Errc::unavailable,
      fmt::format("'{}' has enrolled with the same token too often: {} times at once, then "
                  "once in {:.0f} s are the limit",
                  client, limits::repeated_enrolments, 1 / limits::repeated_enrolments_per_s));
}

Result<void> StoreTokenBook::use_token(std::string_view id, std::string_view client,
                                       std::string_view serial, std::string_view key_digest,
                                       double now) {
  FL_TRY(const auto token, members_.find_token(id));
  if (token && token->used_at != 0) FL_CHECK(repeats_.take(std::string(client)));
  ClientRecord record;
  record.name = client;
  record.certificate_serial = serial;
  record.enrolled_at = now;
  return members_.use_token(id, record, key_digest);
}

Result<void> Admission::renew_certificate() {
  const double now = Clock::unix_seconds();
  FL_TRY(auto certificate, authority_.issue_server(names_, now));
  FL_TRY(auto context, server_context(certificate, authority_));
  const MutexLock lock(mutex_);
  tls_ = std::make_shared<net::ssl::context>(std::move(context));
  certificate_ = std::move(certificate);
  return {};
}

std::shared_ptr<net::ssl::context> Admission::tls() {
  const MutexLock lock(mutex_);
  return tls_;
}

bool Admission::is_certificate_due() {
  const MutexLock lock(mutex_);
  return certificate_.is_due(Clock::unix_seconds());
}

/// Writes a refusal into the log and the history. Anyone who reaches the port can cause refusals:
/// of each kind a few in a minute are written one by one, the others as a number.
void Admission::note_refusal(const std::string& kind, const std::string& text) {
  if (refusals_.passes(kind)) record_refusal(text);
}

void Admission::record_refusal(std::string text) { report(EventLevel::warning, std::move(text)); }

/// Writes a line into the log, and an event of the current run. Any strand.
void Admission::report(EventLevel level, std::string text) {
  net::post(store_.executor(),
            [this, level, text = std::move(text), run = hosts_.joined()->run_id()] {
              store_.report(level, text, run);
            });
}

Awaitable<Enrolment> Admission::enrol(std::string body) {
  Enrolment answer;
  auto work = [this, body = std::move(body)](Store& store) -> Result<EnrolmentResponse> {
    FL_TRY(const auto request, parse_enrolment_request(body));
    FL_CHECK(store.members().expire_tokens(Clock::unix_seconds()));
    StoreTokenBook book(store.members(), repeats_);
    return enroll(authority_, book, request, Clock::unix_seconds());
  };
  auto audited = [work = std::move(work)](Store& store) -> Result<EnrolmentResponse> {
    auto made = work(store);
    if (made || will_pass(made.error())) return made;
    if (auto noted = store.audit().add(AuditKind::refusal, "", made.error().message()); !noted)
      return noted.error();
    return made;
  };
  const auto response = co_await store_.ask(std::move(audited));
  if (response) {
    report(EventLevel::info, response->name + " has joined the federation");
    for (const auto& host : hosts_.all()) {
      net::post(host->executor(), [host, name = response->name] {
        host->expel(name,
                    "this name was enrolled again with a new key; this certificate is no longer "
                    "valid");
      });
    }
    answer.body = to_json(*response);
    answer.member = response->name;
  } else {
    note_refusal("enrolments that were refused",
                 "an enrolment was refused: " + response.error().message());
    answer.status = http_status(response.error());
    answer.body = to_json(response.error());
  }
  co_return answer;
}

Awaitable<Result<ConnectionHandler::Place>> Admission::admit(std::string name, std::string serial) {
  // A certificate that is no longer valid takes no place of its client's.
  auto look = [name, serial](Store& store) -> Result<void> {
    auto admitted = store.members().admit(name, serial);
    if (admitted || admitted.error().code() != Errc::unauthenticated) return admitted;
    FL_CHECK(store.audit().add(AuditKind::refusal, name, admitted.error().message()));
    return admitted;
  };
  const auto admitted = co_await store_.ask(std::move(look));
  if (admitted) co_return places_->take(name);
  if (admitted.error().code() == Errc::unauthenticated) {
    note_refusal(name + " was not let in",
                 fmt::format("{} was not let in: {}", name, admitted.error().message()));
    co_return admitted.error();
  }
  co_return Error(Errc::unavailable, "the server's history can't be read now");
}

Awaitable<void> Admission::serve(std::shared_ptr<Link> link, Place place, std::string name,
                                 std::string serial) {
  place->use(link);
  Renewer renewer = [this, name, serial](std::string csr) {
    return renew(name, serial, std::move(csr));
  };
  auto session = std::make_shared<Session>(std::move(link), std::move(name), hosts_.joined(),
                                           std::move(serial), std::move(renewer), authorities_);
  co_await session->run();
  if (session->is_at_fault()) place->blame();
}

/// Records the certificate before it is handed out: one that the history does not know lets nobody
/// in. A client whose old certificate lets nobody in any more gets no new one.
Awaitable<Result<wire::Renewed>> Admission::renew(std::string name, std::string serial,
                                                  std::string csr_pem) {
  FL_CO_TRY(const auto issued, authority_.issue_client(name, csr_pem, Clock::unix_seconds()));
  auto record = [name, before = serial, after = issued.serial](Store& store) -> Result<void> {
    return store.members().add_certificate(name, after, before);
  };
  FL_CO_CHECK(co_await store_.ask(std::move(record)));
  wire::Renewed renewed;
  renewed.set_certificate_pem(issued.pem);
  renewed.set_ca_pem(authority_.trusted_pem());
  report(EventLevel::info, name + ": certificate renewed");
  co_return renewed;
}

/// Acts on what other processes and the admin pages have written into the history: ends the
/// sessions of revoked clients, and a run that was ended, and has pardoned clients asked again.
/// `seen`: what the last call acted on.
Awaitable<void> Admission::follow_history(HistorySeen& seen) {
  auto look = [](Store& store) { return store.data_version(); };
  const auto version = co_await store_.with_store(std::move(look));
  const auto hosts = hosts_.all();
  const RunId newest = hosts_.joined()->run_id();
  if (!version || (*version == seen.version && newest == seen.newest_run)) co_return;
  auto list = [](Store& store) { return store.members().all(); };
  const auto clients = co_await store_.with_store(std::move(list));
  if (!clients) co_return;
  std::vector<std::string> ends;  // Why an operator has ended each run; "" if nobody has.
  for (const auto& host : hosts) {
    auto find = [run = host->run_id()](Store& store) { return store.runs().find(run); };
    const auto run = co_await store_.with_store(std::move(find));
    if (!run) co_return;
    ends.push_back(*run ? (*run)->early_end : "");
  }
  seen = {*version, newest};
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!ends[i].empty()) hosts[i]->end_early(ends[i]);
    for (const auto& client : *clients) {
      if (client.revoked_at != 0) hosts[i]->revoke(client.name);
      if (client.pardoned_at != 0) hosts[i]->pardon(client.name, client.pardoned_at);
    }
  }
}

Awaitable<void> Admission::watch(HistoryChanges& changes, std::shared_ptr<std::atomic<bool>> stop) {
  std::uint64_t changes_seen = 0;
  HistorySeen seen;
  while (!*stop) {
    co_await follow_history(seen);
    auto add_counts = [](Store& store) { return store.audit().add_counts(); };
    [[maybe_unused]] const auto added = co_await store_.with_store(std::move(add_counts));
    for (const auto& left_out : refusals_.take_left_out()) record_refusal(to_string(left_out));
    if (is_certificate_due()) {
      const auto renewed = renew_certificate();
      if (!renewed && refusals_.passes("the server's certificate"))
        log_error(
            "the server's certificate can't be made anew, and members will refuse it when it "
            "ends: {}",
            renewed.error().message());
    }
    co_await changes.wait(changes_seen);
  }
}

}  // namespace fl::server
