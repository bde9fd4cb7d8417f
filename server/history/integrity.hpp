// SPDX-License-Identifier: Apache-2.0
// Checks whether a history's file is whole, for `fl-server doctor`.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <string>

namespace fl::server {

/// SQLite's quick_check over a connection of its own: "" if the database is whole, else what is
/// wrong with it. Errors: those of opening it. It may run beside a server.
[[nodiscard]] Result<std::string> find_damage(const std::filesystem::path& history);

}  // namespace fl::server
