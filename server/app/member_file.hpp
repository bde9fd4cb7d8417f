// SPDX-License-Identifier: Apache-2.0
// The file of --members: the list whose members mask their updates (shared/secure/member_list.hpp).
// The server hands it out as it is, and can change nothing in it.
#pragma once

#include "server/run/settings.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/secure/member_list.hpp"

#include <optional>
#include <string>

namespace fl::server {

struct MemberFile {
  std::string text;
  secure::MemberList list;
};

/// Blocking. Errors: those of reading the file; invalid_input, naming file and line, if it is no
/// member list.
[[nodiscard]] Result<MemberFile> read_member_file(Files& files, const std::string& path);

/// The words of a warning if one signature is enough for the list; "" if more are needed.
[[nodiscard]] std::string lone_signer_warning(const secure::MemberList& list);

/// Reads the list that a server hands out, and checks its signatures. Warns if one is enough.
/// nullopt without a path. Errors name the flag, the file and the remedy. Blocking.
[[nodiscard]] Result<std::optional<MemberFile>> read_served_members(Files& files,
                                                                    const std::string& path);

/// Whether there is a list if the run needs one, as a masked run does. Errors: invalid_input, with
/// the flag to give.
[[nodiscard]] Result<void> check_members_given(const RunSettings& settings,
                                               const std::optional<MemberFile>& members);
/// Whether a server with this list can have the run: check_members_given(), and rounds that are as
/// large as the list asks for. Errors: invalid_input, with the flag to give.
[[nodiscard]] Result<void> check_members(const RunSettings& settings,
                                         const std::optional<MemberFile>& members);

}  // namespace fl::server
