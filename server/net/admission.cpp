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
  FL_TRY(const auto certificate, authority_.issue_server(hosts_, now));
  FL_TRY(auto context, server_context(certificate, authority_));
  const std::lock_guard lock(mutex_);
  tls_ = std::make_shared<net::ssl::context>(std::move(context));
  renew_at_ = certificate.renew_at;
  return {};
}

std::shared_ptr<net::ssl::context> Admission::tls() {
  const std::lock_guard lock(mutex_);
  return tls_;
}

bool Admission::is_certificate_due() {
  const std::lock_guard lock(mutex_);
  return Clock::unix_seconds() >= renew_at_;
}

/// An event of the history; the log has them all. Whoever reaches the port can make some: so not
/// too many.
void Admission::note_refusal(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    if (Clock::now() - refusals_since_ >= std::chrono::hours(1)) {
      refusals_since_ = Clock::now();
      refusals_ = 0;
    }
    if (++refusals_ > limits::refusals_noted_max) return;
    if (refusals_ == limits::refusals_noted_max) text += "; the log alone has more of this hour";
  }
  const auto engine = current_.get();
  net::post(engine->executor(),
            [engine, text = std::move(text)] { engine->note("warning", text); });
}

namespace {

/// `work(store)` on the store's thread, from any strand.
template <class Function>
Awaitable<std::invoke_result_t<Function&, Store&>> ask_store(std::shared_ptr<RoundEngine> engine,
                                                             Function work) {
  co_return co_await on(engine->executor(), engine->with_store(std::move(work)));
}

}  // namespace

Awaitable<HttpAnswer> Admission::enrol(std::string body) {
  HttpAnswer answer;
  const auto work = [this, body = std::move(body)](Store& store) -> Result<EnrolmentResponse> {
    FL_TRY(const auto request, parse_enrolment_request(body));
    StoreTokenBook book(store);
    return enroll(authority_, book, request, Clock::unix_seconds());
  };
  const auto engine = current_.get();
  auto response = co_await ask_store(engine, work);
  if (response) {
    net::post(engine->executor(), [engine, name = response->name] {
      engine->report("info", name + " has joined the federation");
      engine->expel(name,
                    "another has joined by its name, or it has itself: only that one is let in");
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
  auto admitted = co_await ask_store(current_.get(), std::move(look));
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
  const auto engine = current_.get();
  FL_CO_CHECK(co_await ask_store(engine, std::move(record)));
  wire::Renewed renewed;
  renewed.set_certificate_pem(issued.pem);
  renewed.set_ca_pem(authority_.certificate_pem());
  const std::string text = name + ": certificate renewed";
  net::post(engine->executor(), [engine, text] { engine->report("info", text); });
  co_return renewed;
}

Awaitable<void> Admission::watch_revocations(std::shared_ptr<std::atomic<bool>> stop) {
  std::int64_t seen = -1;
  while (!*stop) {
    const auto asked = current_.get();
    auto look = [](Store& store) { return store.data_version(); };
    const auto version = co_await asked->with_store(std::move(look));
    if (version && *version != seen) {
      seen = *version;
      auto list = [](Store& store) { return store.clients(); };
      const auto clients = co_await asked->with_store(std::move(list));
      const auto engine = current_.get();  // Perhaps another by now.
      if (clients) {
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
