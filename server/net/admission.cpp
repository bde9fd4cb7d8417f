// SPDX-License-Identifier: Apache-2.0
#include "server/net/admission.hpp"

#include "server/net/session.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/wire/tls_context.hpp"

#include <fmt/format.h>

namespace fl {

Result<std::optional<TokenBook::Token>> StoreTokenBook::find_token(std::string_view id) {
  FL_TRY(const auto found, store_.find_token(id));
  if (!found) return std::optional<Token>();
  return std::optional<Token>(
      Token{found->name, found->secret_hash, found->expires_at, found->used_at, found->key_digest});
}

Result<bool> StoreTokenBook::is_revoked(std::string_view client) {
  FL_TRY(const auto found, store_.find_client(client));
  return found && found->revoked_at != 0;
}

Result<void> StoreTokenBook::use_token(std::string_view id, std::string_view client,
                                       std::string_view serial, std::string_view key_digest,
                                       double now) {
  ClientRecord record;
  record.name = client;
  record.certificate_serial = serial;
  record.enrolled_at = now;
  return store_.use_token(id, record, key_digest);
}

Result<void> Admission::renew_certificate() {
  const double now = Clock::unix_seconds();
  FL_TRY(auto certificate, authority_.issue_server(hosts_, now));
  FL_TRY(auto context, server_context(certificate, authority_));
  const std::lock_guard lock(mutex_);
  tls_ = std::make_shared<net::ssl::context>(std::move(context));
  certificate_ = std::move(certificate);
  return {};
}

std::shared_ptr<net::ssl::context> Admission::tls() {
  const std::lock_guard lock(mutex_);
  return tls_;
}

bool Admission::is_certificate_due() {
  const std::lock_guard lock(mutex_);
  return certificate_.is_due(Clock::unix_seconds());
}

/// Records a refusal as an event, at most limits::refusals_noted_max in an hour: anybody who
/// reaches the port can cause some. The log has them all.
void Admission::note_refusal(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() - refusals_since_ >= std::chrono::hours(1)) {
      refusals_since_ = Clock::now();
      refusals_ = 0;
    }
    if (++refusals_ > limits::refusals_noted_max) return;
    if (refusals_ == limits::refusals_noted_max) text += "; only the log has more of this hour";
  }
  net::post(store_.executor(), [this, text = std::move(text), run = current_.get()->run_id()] {
    store_.record_event(EventLevel::warning, text, run);
  });
}

/// A line in the log, and an event of the run at hand. From any strand.
void Admission::report(EventLevel level, std::string text) {
  net::post(store_.executor(),
            [this, level, text = std::move(text), run = current_.get()->run_id()] {
              store_.report(level, text, run);
            });
}

Awaitable<HttpAnswer> Admission::enrol(std::string body) {
  HttpAnswer answer;
  auto work = [this, body = std::move(body)](Store& store) -> Result<EnrolmentResponse> {
    FL_TRY(const auto request, parse_enrolment_request(body));
    StoreTokenBook book(store);
    return enroll(authority_, book, request, Clock::unix_seconds());
  };
  const auto response = co_await store_.ask(std::move(work));
  if (response) {
    report(EventLevel::info, response->name + " has joined the federation");
    const auto engine = current_.get();
    net::post(engine->executor(), [engine, name = response->name] {
      engine->expel(name,
                    "this name was enrolled again with a new key; this certificate is no longer "
                    "valid");
    });
    answer.body = to_json(*response);
  } else {
    log_warn("an enrolment was refused: {}", response.error().message());
    note_refusal("an enrolment was refused: " + response.error().message());
    answer.status = http_status(response.error());
    answer.body = to_json(response.error());
  }
  co_return answer;
}

Awaitable<Result<void>> Admission::admit(std::string name, std::string serial) {
  auto look = [name, serial](Store& store) { return store.admit(name, serial); };
  auto admitted = co_await store_.ask(std::move(look));
  if (admitted) co_return admitted;
  if (admitted.error().code() == Errc::unauthenticated) {
    note_refusal(fmt::format("{} was not let in: {}", name, admitted.error().message()));
    co_return admitted;
  }
  co_return Error(Errc::unavailable, "the server's history can't be read now");
}

Awaitable<void> Admission::serve(std::shared_ptr<Link> link, std::string name, std::string serial) {
  Renewer renewer = [this, name, serial](std::string csr) {
    return renew(name, serial, std::move(csr));
  };
  auto session = std::make_shared<Session>(std::move(link), std::move(name), current_.get(),
                                           std::move(serial), std::move(renewer));
  ++sessions_;
  co_await session->run();
  --sessions_;
}

/// Recorded before it is handed out: a certificate that the history does not know lets nobody in.
/// And not to one whose certificate lets nobody in any more.
Awaitable<Result<wire::Renewed>> Admission::renew(std::string name, std::string serial,
                                                  std::string csr_pem) {
  FL_CO_TRY(const auto issued, authority_.issue_client(name, csr_pem, Clock::unix_seconds()));
  auto record = [name, before = serial, after = issued.serial](Store& store) -> Result<void> {
    return store.add_certificate(name, after, before);
  };
  FL_CO_CHECK(co_await store_.ask(std::move(record)));
  wire::Renewed renewed;
  renewed.set_certificate_pem(issued.pem);
  renewed.set_ca_pem(authority_.certificate_pem());
  report(EventLevel::info, name + ": certificate renewed");
  co_return renewed;
}

Awaitable<void> Admission::watch_revocations(std::shared_ptr<std::atomic<bool>> stop) {
  std::int64_t seen = -1;
  while (!*stop) {
    auto look = [](Store& store) { return store.data_version(); };
    const auto version = co_await store_.with_store(std::move(look));
    if (version && *version != seen) {
      auto list = [](Store& store) { return store.clients(); };
      const auto clients = co_await store_.with_store(std::move(list));
      const auto engine = current_.get();
      if (clients) {
        seen = *version;
        for (const auto& client : *clients) {
          if (client.revoked_at != 0) engine->expel(client.name, "it was revoked");
        }
      }
    }
    if (is_certificate_due()) {
      if (auto renewed = renew_certificate(); !renewed)
        log_error("the server's certificate: {}", renewed.error().message());
    }
    co_await sleep_for(limits::revocation_poll);
  }
}

}  // namespace fl
