// SPDX-License-Identifier: Apache-2.0
// The members of the federation: their join tokens, their certificates, and when they were seen.
// Each change of who may come in is in the audit, in the same transaction. Threads, transactions
// and errors are as store.hpp says.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace fl::server {

class Audit;
class Database;

class Members {
 public:
  Members(Database& db, Audit& audit) : db_(db), audit_(audit) {}

  [[nodiscard]] Result<void> add_token(const TokenRecord& token);
  [[nodiscard]] Result<std::optional<TokenRecord>> find_token(std::string_view id);
  /// Unused tokens that have expired by `now` stay so, whatever the clock says later.
  [[nodiscard]] Result<void> expire_tokens(double now);
  /// Marks the token as used by the key with this digest, and records the client's certificate, and
  /// the role and limit that the token gives it: from now on no other certificate lets it in. The
  /// same key may use the token again, unless the name has joined with another token since. A token
  /// that another key has used and a revoked client are `conflict`; a token for another name is
  /// `invalid_input`. The caller checks secret and expiry.
  [[nodiscard]] Result<void> use_token(std::string_view id, const ClientRecord& client,
                                       std::string_view key_digest);
  /// Records a client's renewed certificate. Its earlier certificates remain valid until it
  /// connects with this one, as the answer that brings it may be lost: at most `certificates_max`,
  /// and `proven`, the one of its session. An unknown name is not_found; a revoked client is
  /// conflict; a `proven` that is no longer valid is unauthenticated.
  [[nodiscard]] Result<void> add_certificate(std::string_view name, std::string_view serial,
                                             std::string_view proven);
  static constexpr int certificates_max = 4;  // The most that one client has.
  /// Succeeds if this certificate lets the client in; the ones before it no longer do. Otherwise
  /// `unauthenticated`, with a text for the client.
  [[nodiscard]] Result<void> admit(std::string_view name, std::string_view serial);
  /// Records that the client is here now. A client that is not in the table (it is simulated) is
  /// added, as enrolled now. `evaluator` is the role of such a client; the role of one with a
  /// certificate stays. `model` and `tensors`: the only ones that it trains; "": any.
  [[nodiscard]] Result<void> touch(std::string_view name, bool evaluator,
                                   std::string_view model = "", std::string_view tensors = "");
  /// Records that these clients are here now, as touch() does.
  [[nodiscard]] Result<void> touch(const std::vector<ClientHere>& clients);
  /// Revokes the client for good; a second time changes nothing. If nobody has joined by that name,
  /// its tokens become void; if there are none either, not_found.
  [[nodiscard]] Result<void> revoke(std::string_view name, std::string_view by);
  /// Notes that what the client missed up to now counts no more (Rounds::misses). Errors:
  /// not_found; conflict, if it is revoked.
  [[nodiscard]] Result<void> pardon(std::string_view name);
  [[nodiscard]] Result<std::vector<ClientRecord>> all();  // By name.
  [[nodiscard]] Result<std::optional<ClientRecord>> find(std::string_view name);

 private:
  Database& db_;
  Audit& audit_;
};

}  // namespace fl::server
