// SPDX-License-Identifier: Apache-2.0
// Opens the history of a state folder for a sub-command. Blocking.
#pragma once

#include "server/history/store.hpp"

#include <filesystem>
#include <memory>

namespace fl::server {

/// The history in the state folder. Errors: not_found, with what to do, if there is none; conflict,
/// if its schema is older, as only the server's start migrates it.
[[nodiscard]] Result<std::unique_ptr<Store>> open_store(const std::filesystem::path& state,
                                                        bool read_only);

}  // namespace fl::server
