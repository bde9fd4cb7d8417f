// SPDX-License-Identifier: Apache-2.0
#include "server/history/members.hpp"

#include "server/history/audit.hpp"
#include "server/history/sqlite.hpp"
#include "server/history/tables.hpp"

#include <fmt/format.h>

namespace fl::server {

namespace {

Result<std::optional<ClientRecord>> client_named(Database& db, std::string_view name) {
  return db.find(client_table.select("WHERE name = ?1"), client_table.reader(), name);
}

Result<std::optional<TokenRecord>> token_named(Database& db, std::string_view id) {
  return db.find(token_table.select("WHERE id = ?1"), token_table.reader(), id);
}

Error no_such_client(std::string_view name) {
  return {Errc::not_found, fmt::format("there is no client '{}'", name)};
}

Error is_outdated(std::string_view name) {
  return {Errc::unauthenticated,
          fmt::format(
              "'{}' has a newer certificate than this one. If it has neither renewed it nor "
              "joined again, its key may be stolen, and whoever renewed it is let in: 'fl-server "
              "revoke' ends that. Otherwise join again with a new token",
              name)};
}

Error is_revoked(std::string_view name) {
  return {Errc::conflict, fmt::format("client '{}' is revoked", name)};
}

/// A used token may be used again by the same key, as its client may have lost the answer.
Result<bool> is_repeatable(Database& db, const TokenRecord& token, std::string_view key_digest) {
  if (token.key_digest != key_digest) return false;
  FL_TRY(const auto later, db.find(
                               "SELECT 1 FROM token WHERE client = ?1 AND used_at > ?2 LIMIT 1",
                               [](const Row&) { return true; }, token.name, token.used_at));
  return !later;
}

Result<void> insert_certificate(Database& db, std::string_view client, std::string_view serial) {
  FL_CHECK(db.run("INSERT INTO certificate (client, serial) VALUES (?1, ?2)", client, serial));
  return {};
}

}  // namespace

Result<void> Members::add_token(const TokenRecord& token) {
  return db_.write([&] { return token_table.insert(db_, token); });
}

Result<std::optional<TokenRecord>> Members::find_token(std::string_view id) {
  return token_named(db_, id);
}

Result<void> Members::expire_tokens(double now) {
  return db_.write([&]() -> Result<void> {
    FL_CHECK(
        db_.run("UPDATE token SET expires_at = 0"
                " WHERE used_at IS NULL AND expires_at > 0 AND expires_at < ?1",
                now));
    return {};
  });
}

Result<void> Members::use_token(std::string_view id, const ClientRecord& client,
                                std::string_view key_digest) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const auto token, token_named(db_, id));
    if (!token) return Error(Errc::not_found, fmt::format("there is no token {}", id));
    if (token->name != client.name) {
      return Error(Errc::invalid_input,
                   fmt::format("token {} is for '{}', not for '{}'", id, token->name, client.name));
    }
    FL_TRY(const auto known, client_named(db_, client.name));
    if (known && known->revoked_at != 0) return is_revoked(client.name);
    const bool is_repeated = token->used_at != 0;
    if (is_repeated) {
      FL_TRY(const bool again, is_repeatable(db_, *token, key_digest));
      if (!again) return Error(Errc::conflict, fmt::format("token {} is used already", id));
    } else {
      FL_TRY(const double now, db_.now());
      FL_CHECK(db_.run("UPDATE token SET used_at = ?2, key_digest = ?3 WHERE id = ?1", id, now,
                       key_digest));
    }
    FL_CHECK(db_.run(
        "INSERT INTO client (name, certificate_serial, enrolled_at, evaluator, examples_max)"
        " VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (name) DO UPDATE SET"
        " certificate_serial = excluded.certificate_serial,"
        " enrolled_at = excluded.enrolled_at, evaluator = excluded.evaluator,"
        " examples_max = excluded.examples_max",
        client.name, client.certificate_serial, client.enrolled_at, token->evaluator ? 1 : 0,
        token->examples_max));
    FL_CHECK(db_.run("DELETE FROM certificate WHERE client = ?1", client.name));
    FL_CHECK(insert_certificate(db_, client.name, client.certificate_serial));
    const bool takes_over = known && !known->certificate_serial.empty() && !is_repeated;
    const std::string text =
        fmt::format("certificate {}{}", client.certificate_serial,
                    is_repeated  ? ", asked for again by the same key"
                    : takes_over ? " with a new key; its old key is no longer accepted"
                                 : "");
    return audit_.note(takes_over ? AuditKind::takeover : AuditKind::enrolment, client.name, text,
                       client.name);
  });
}

Result<void> Members::add_certificate(std::string_view name, std::string_view serial,
                                      std::string_view proven) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const auto known, client_named(db_, name));
    if (!known) return no_such_client(name);
    if (known->revoked_at != 0) return is_revoked(name);
    FL_TRY(const auto is_good, db_.find(
                                   "SELECT 1 FROM certificate WHERE client = ?1 AND serial = ?2",
                                   [](const Row& row) { return row.integer(0); }, name, proven));
    if (!is_good) return is_outdated(name);
    FL_CHECK(db_.run("UPDATE client SET certificate_serial = ?2 WHERE name = ?1", name, serial));
    FL_CHECK(insert_certificate(db_, name, serial));
    FL_CHECK(
        db_.run("DELETE FROM certificate WHERE client = ?1 AND serial <> ?3 AND id NOT IN"
                " (SELECT id FROM certificate WHERE client = ?1 ORDER BY id DESC LIMIT ?2)",
                name, certificates_max, proven));
    if (!audit_.passes(AuditKind::renewal, name)) return {};
    return audit_.note(AuditKind::renewal, name,
                       fmt::format("certificate {} after {}", serial, proven), name);
  });
}

Result<void> Members::admit(std::string_view name, std::string_view serial) {
  const auto refusal = [](std::string text) { return Error(Errc::unauthenticated, text); };
  FL_TRY(const auto known, client_named(db_, name));
  if (!known) {
    return refusal(
        fmt::format("'{}' is not enrolled at this server: join again with a new token", name));
  }
  if (known->revoked_at != 0) return refusal(fmt::format("'{}' was revoked", name));
  const auto read_id = [](const Row& row) { return row.integer(0); };
  FL_TRY(const auto id, db_.find("SELECT id FROM certificate WHERE client = ?1 AND serial = ?2",
                                 read_id, name, serial));
  if (!id) return is_outdated(name);
  FL_TRY(const auto older,
         db_.find("SELECT id FROM certificate WHERE client = ?1 AND id < ?2 LIMIT 1", read_id, name,
                  *id));
  if (!older) return {};
  return db_.write([&]() -> Result<void> {
    FL_CHECK(db_.run("DELETE FROM certificate WHERE client = ?1 AND id < ?2", name, *id));
    return {};
  });
}

Result<void> Members::touch(std::string_view name, bool evaluator, std::string_view model,
                            std::string_view tensors) {
  return touch({{std::string(name), evaluator, std::string(model), std::string(tensors)}});
}

Result<void> Members::touch(const std::vector<ClientHere>& clients) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const double now, db_.now());
    for (const ClientHere& client : clients) {
      FL_CHECK(
          db_.run("INSERT INTO client (name, certificate_serial, enrolled_at, last_seen_at,"
                  " evaluator, model, tensors) VALUES (?1, '', ?2, ?2, ?3, ?4, ?5)"
                  " ON CONFLICT (name) DO UPDATE SET last_seen_at = excluded.last_seen_at,"
                  " model = excluded.model, tensors = excluded.tensors,"
                  " evaluator = CASE certificate_serial WHEN '' THEN excluded.evaluator"
                  " ELSE evaluator END",
                  client.name, now, client.evaluator ? 1 : 0, client.model, client.tensors));
    }
    return {};
  });
}

Result<void> Members::revoke(std::string_view name, std::string_view by) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const auto known, client_named(db_, name));
    if (!known) {
      FL_TRY(const int tokens, db_.run("DELETE FROM token WHERE client = ?1", name));
      if (tokens == 0) return no_such_client(name);
      return audit_.note(AuditKind::revocation, name, "its tokens are void", by);
    }
    if (known->revoked_at != 0) return {};
    FL_TRY(const double now, db_.now());
    FL_CHECK(db_.run("UPDATE client SET revoked_at = ?2 WHERE name = ?1", name, now));
    return audit_.note(AuditKind::revocation, name, "it is never admitted again", by);
  });
}

Result<void> Members::pardon(std::string_view name) {
  return db_.write([&]() -> Result<void> {
    FL_TRY(const auto known, client_named(db_, name));
    if (!known) return no_such_client(name);
    if (known->revoked_at != 0) return is_revoked(name);
    FL_TRY(const double now, db_.now());
    FL_CHECK(db_.run("UPDATE client SET pardoned_at = ?2 WHERE name = ?1", name, now));
    return {};
  });
}

Result<std::vector<ClientRecord>> Members::all() {
  return db_.query(client_table.select("ORDER BY name"), client_table.reader());
}

Result<std::optional<ClientRecord>> Members::find(std::string_view name) {
  return client_named(db_, name);
}

}  // namespace fl::server
