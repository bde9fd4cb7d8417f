// SPDX-License-Identifier: Apache-2.0
// Where operators control the server: POST /api/control/ACTION with a JSON object. An operator has
// a token (fl-server operator add); a request has it in its Authorization header, or the cookie of
// a session that was opened with it. Each request looks the operator up: whoever is revoked is out
// at once. Without operators nobody may do anything here.
//
// It writes through a connection to the database of its own, on a thread of its own, as the
// sub-commands do from their processes. Any strand.
#pragma once

#include "server/admin/answer.hpp"
#include "server/admin/sessions.hpp"
#include "server/history/store.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/json.hpp"
#include "shared/net/http.hpp"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// One thing that operators can do.
struct ControlAction {
  std::string name;  // The last part of its address.
  AdminRole role = AdminRole::admin;
  /// Does it and returns the answer. `by`: who does it. Its errors are told to the operator.
  std::function<Result<nlohmann::json>(Store& store, const nlohmann::json& body,
                                       const std::string& by)>
      run;
  /// For the audit: the client that it is about, and what was done. Never a secret.
  std::function<std::string(const nlohmann::json& body)> client;
  std::function<std::string(const nlohmann::json& body)> text;
};

/// Who makes a request.
struct Operator {
  std::string name;
  AdminRole role = AdminRole::viewer;
  bool is_by_cookie = false;  // A browser sends a cookie by itself.
};

class ControlDesk {
 public:
  /// `history`: the database, which exists.
  static Result<std::unique_ptr<ControlDesk>> open(const std::filesystem::path& history,
                                                   std::vector<ControlAction> actions);

  /// Whether this address is one of the desk's: /api/control/…, /api/login, /api/logout, or
  /// /api/operator, which says who asks.
  [[nodiscard]] static bool has(std::string_view path);
  /// Answers a request for such an address.
  Awaitable<PageAnswer> answer(HttpRequest request);
  /// The operator who makes this request; none if it is nobody's.
  Awaitable<std::optional<Operator>> operator_of(const HttpRequest& request);
  /// Whether too many logins have failed just now.
  Awaitable<bool> is_locked();

 private:
  ControlDesk(std::unique_ptr<Store> store, std::vector<ControlAction> actions)
      : store_(std::move(store)), actions_(std::move(actions)) {}

  [[nodiscard]] Result<std::optional<Operator>> look_up(const std::string& token_hash);
  [[nodiscard]] PageAnswer log_in(const HttpRequest& request);
  [[nodiscard]] PageAnswer act(const ControlAction& action, const Operator& who,
                               const std::string& body);
  [[nodiscard]] bool may_try();
  void note_failure();

  std::unique_ptr<Store> store_;  // This and the rest on the thread, but for sessions_.
  std::vector<ControlAction> actions_;
  AdminSessions sessions_;
  TimePoint failures_since_{};
  int failures_ = 0;
  Offload thread_{1};
};

/// SHA-256 of a token, as the history has it.
[[nodiscard]] std::string operator_token_hash(std::string_view token);

}  // namespace fl
