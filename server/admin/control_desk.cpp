// SPDX-License-Identifier: Apache-2.0
#include "server/admin/control_desk.hpp"

#include "server/admin/request.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

namespace {

unsigned status_of(Errc code) {
  switch (code) {
    case Errc::not_found: return 404;
    case Errc::conflict: return 409;
    case Errc::invalid_input:
    case Errc::corrupt:
    case Errc::too_large: return 400;
    default: return 503;
  }
}

/// On the store's thread. The row of the audit comes first: nothing is done that it does not have.
PageAnswer act(Store& store, const ControlAction& action, const std::string& operator_name,
               const std::string& body) {
  const auto json = parse_json(body);
  if (!json.is_object()) return refusal(400, "the body must be a JSON object");
  const std::string by = fmt::format("operator '{}'", operator_name);
  const std::string text = printable(action.text(json), limits::control_text_bytes_max);
  const std::string client = printable(action.client(json), limits::control_text_bytes_max);
  const auto noted = store.add_control(by, client, text);
  if (!noted) return refusal(503, noted.error().message());
  const auto done = action.run(store, json, by);
  if (done) return json_answer(*done);
  const auto failed = store.add_control(
      by, client, fmt::format("'{}' failed: {}", action.name, done.error().message()));
  if (!failed)
    log_warn("can't write into the audit that '{}' of {} failed: {}", action.name, by,
             failed.error().message());
  return refusal(status_of(done.error().code()), done.error().message());
}

}  // namespace

Awaitable<PageAnswer> ControlDesk::answer(HttpRequest request, std::optional<Visitor> who) {
  if (auto refused = refuse_foreign(request)) co_return std::move(*refused);
  const std::string path = address_of(request).first;
  const auto action = std::ranges::find(actions_, path.substr(prefix.size()), &ControlAction::name);
  if (action == actions_.end()) co_return refusal(404, "there is no such action");
  if (!who || who->operator_name.empty())
    co_return refusal(401, "log in with the token of an operator");
  if (who->role < action->role) {
    co_return refusal(
        403, fmt::format("this needs the role {}, and '{}' has the role {}", to_text(action->role),
                         who->operator_name, to_text(who->role)));
  }
  auto do_it = [&action = *action, &who, &request](Store& store) {
    return act(store, action, who->operator_name, request.body());
  };
  co_return co_await store_.run(std::move(do_it));
}

}  // namespace fl
