// SPDX-License-Identifier: Apache-2.0
// The actions on a server that runs: queue a run, end one, invite and revoke clients, name
// operators. The sub-commands and the admin pages call the same functions. They write into the
// history, and the server follows what is there (Admission::watch, RunLoop). Blocking (the store).
#pragma once

#include "server/admin/control_desk.hpp"
#include "server/app/invitations.hpp"

#include <string>
#include <vector>

namespace fl::server {

/// Takes a run that has no model yet out of the queue, also the one that a server has begun to
/// gather clients for, and says so. `by`: who does it, for the events. Errors: conflict, if it is
/// under way or over.
[[nodiscard]] Result<std::string> drop_run(Store& store, const RunRecord& run, std::string_view by);

/// Ends a run in whatever state it is: after the round under way, durably, or as drop_run() does.
/// Says what was done. Errors: conflict, if it is over.
[[nodiscard]] Result<std::string> end_run(Store& store, const RunRecord& run, std::string_view by);

/// Revokes a client, or the tokens of a name, and says what was done. `by`: who does it, for the
/// audit.
[[nodiscard]] Result<std::string> revoke_member(Store& store, const std::string& name,
                                                std::string_view by);

/// Pardons a client: what it missed up to now counts no more. Says what was done. Errors:
/// not_found; conflict, if it is revoked.
[[nodiscard]] Result<std::string> pardon_member(Store& store, const std::string& name);

/// Makes a new operator's token. Nothing else keeps it: the history has only its hash. Errors:
/// invalid_input, conflict.
[[nodiscard]] Result<std::string> name_operator(Operators& operators, const std::string& name,
                                                const std::string& role, std::string_view by);

/// The actions of the admin pages. `options` are the server's.
[[nodiscard]] std::vector<ControlAction> control_actions(const RunOptions& options);

}  // namespace fl::server
