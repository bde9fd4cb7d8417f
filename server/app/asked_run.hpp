// SPDX-License-Identifier: Apache-2.0
// The run that somebody names at the command line or on a page.
#pragma once

#include "server/history/runs.hpp"
#include "shared/flags/flags.hpp"

#include <string>

namespace fl::server {

/// The run with this number or this key; "": the run that a reader most likely wants to see.
/// Blocking. Errors: not_found.
[[nodiscard]] Result<RunRecord> asked_run(Runs& runs, const std::string& name);

/// Declares a flag or an argument that names a run. It may not be empty.
CLI::Option* add_run_option(CLI::App& command, const std::string& flag, std::string& run,
                            const std::string& help);

}  // namespace fl::server
