// SPDX-License-Identifier: Apache-2.0
#include "server/app/asked_run.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

namespace fl::server {

Result<RunRecord> asked_run(Runs& runs, const std::string& name) {
  if (name.empty()) {
    FL_TRY(const auto shown, runs.shown());
    if (shown) return *shown;
    return Error(Errc::not_found, "there is no run yet");
  }
  FL_TRY(const auto with_key, runs.find_key(name));
  if (with_key) return *with_key;
  if (const auto number = number_in<RunId>(name)) {
    FL_TRY(const auto with_number, runs.find(*number));
    if (with_number) return *with_number;
  }
  return Error(Errc::not_found,
               fmt::format("there is no run {}: 'fl-server history --runs' lists them, with their "
                           "numbers and keys",
                           name));
}

CLI::Option* add_run_option(CLI::App& command, const std::string& flag, std::string& run,
                            const std::string& help) {
  return command.add_option(flag, run, help + ", by its number or its key")->check(not_empty());
}

}  // namespace fl::server
