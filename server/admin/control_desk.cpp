// SPDX-License-Identifier: Apache-2.0
#include "server/admin/control_desk.hpp"

#include "server/admin/request.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::server {

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

/// Runs on the store's thread. Writes the audit's row first: nothing is done without a row.
PageAnswer act(Store& store, const ControlAction& action, const std::string& operator_name,
               const std::string& body) {
  const auto json = parse_json(body);
  if (!json.is_object()) return refusal(400, "the body must be a JSON object");
  const std::string by = fmt::format("operator '{}'", operator_name);
  const std::string text = printable(action.text(json), limits::control_text_bytes_max);
  const std::string client = printable(action.client(json), limits::control_text_bytes_max);
  const auto noted = store.audit().add_control(by, client, text);
  if (!noted) return refusal(503, noted.error().message());
  const auto done = action.run(store, json, by);
  if (done) return json_answer(*done);
  const auto failed = store.audit().add_control(
      by, client, fmt::format("'{}' failed: {}", action.name, done.error().message()));
  if (!failed)
    log_warn("can't write into the audit that '{}' of {} failed: {}", action.name, by,
             failed.error().message());
  return refusal(status_of(done.error().code()), done.error().message());
}

}  // namespace

Awaitable<PageAnswer> ControlDesk::refuse(PageAnswer refused, std::string what, Visitor who,
                                          Caller caller) {
  // Refusals are counted for each operator, and for all strangers together.
  auto note = [by = name_of(who), text = fmt::format("{}, from {}", what, caller.address)](
                  Store& store) { return store.audit().add(AuditKind::refusal, "", text, by); };
  const auto noted = co_await store_.run(std::move(note));
  if (!noted) log_warn("can't write a refusal into the audit: {}", noted.error().message());
  co_return refused;
}

Awaitable<PageAnswer> ControlDesk::answer(HttpRequest request, std::optional<Visitor> who,
                                          Caller caller) {
  const std::string path = address_of(request).first;
  const auto action = std::ranges::find(actions_, path.substr(prefix.size()), &ControlAction::name);
  if (action == actions_.end()) co_return refusal(404, "there is no such action");
  Visitor visitor = who.value_or(Visitor());
  if (auto foreign = refuse_foreign(request)) {
    std::string what =
        fmt::format("'{}' was refused: another web page may have made the request", action->name);
    if (foreign->status != 403)
      co_return std::move(*foreign);  // The request is not from a browser.
    co_return co_await refuse(std::move(*foreign), std::move(what), std::move(visitor), caller);
  }
  if (visitor.operator_name.empty()) {
    std::string what = fmt::format("'{}' was refused: it needs an operator's token", action->name);
    PageAnswer refused = refusal(401, "log in with the token of an operator");
    co_return co_await refuse(std::move(refused), std::move(what), std::move(visitor), caller);
  }
  if (visitor.role < action->role) {
    std::string what =
        fmt::format("'{}' was refused: it needs the role {}, and this is the role {}", action->name,
                    to_text(action->role), to_text(visitor.role));
    PageAnswer refused = refusal(
        403, fmt::format("this needs the role {}, and '{}' has the role {}", to_text(action->role),
                         visitor.operator_name, to_text(visitor.role)));
    co_return co_await refuse(std::move(refused), std::move(what), std::move(visitor), caller);
  }
  auto do_it = [&action = *action, &visitor, &request](Store& store) {
    return act(store, action, visitor.operator_name, request.body());
  };
  co_return co_await store_.run(std::move(do_it));
}

}  // namespace fl::server
