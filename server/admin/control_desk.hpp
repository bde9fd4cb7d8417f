// SPDX-License-Identifier: Apache-2.0
// Where operators control the server: POST /api/control/ACTION with a JSON object. Without
// operators nobody may do anything here. The audit has who did it, or was refused. Any strand.
#pragma once

#include "server/admin/access.hpp"
#include "server/admin/answer.hpp"
#include "server/admin/control_store.hpp"
#include "shared/base/json.hpp"
#include "shared/net/http.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// One thing that operators can do.
struct ControlAction {
  std::string name;  // The last part of the action's address.
  AdminRole role = AdminRole::admin;
  /// Does it and returns the answer. `by`: who does it. The operator is told its errors.
  std::function<Result<nlohmann::json>(Store& store, const nlohmann::json& body,
                                       const std::string& by)>
      run;
  /// For the audit: the client that it is about, and what was done. Never a secret.
  std::function<std::string(const nlohmann::json& body)> client;
  std::function<std::string(const nlohmann::json& body)> text;
};

class ControlDesk {
 public:
  /// `store` must outlive this.
  ControlDesk(ControlStore& store, std::vector<ControlAction> actions)
      : store_(store), actions_(std::move(actions)) {}

  /// Whether this address is one of the desk's.
  [[nodiscard]] static bool has(std::string_view path) { return path.starts_with(prefix); }
  /// Answers a request for such an address. `who`: the result of AdminAccess::visitor_of().
  Awaitable<PageAnswer> answer(HttpRequest request, std::optional<Visitor> who, Caller caller);

 private:
  /// Refuses a request, and writes the refusal into the audit.
  Awaitable<PageAnswer> refuse(PageAnswer refused, std::string what, Visitor who, Caller caller);

  static constexpr std::string_view prefix = "/api/control/";

  ControlStore& store_;
  std::vector<ControlAction> actions_;
};

}  // namespace fl::server
