// SPDX-License-Identifier: Apache-2.0
// The settings of a run as a form of the admin pages shows them: all that have a flag, but for
// those that name a file of the server's machine, which its visitors must not read. Made of the one
// table of settings (server/run/settings_table.hpp). Blocking (the store).
#pragma once

#include "server/history/store.hpp"

#include <string>

namespace fl::server {

/// {"settings": […]}: each setting by its name in JSON, with its flag, heading, help, default, and
/// what it may be. The defaults are those of a run that is queued now.
[[nodiscard]] Result<std::string> setting_form(Store& store);

}  // namespace fl::server
