// SPDX-License-Identifier: Apache-2.0
#include "server/history/run_name.hpp"

#include "server/history/cells.hpp"
#include "shared/base/json.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

namespace fl::server {

RunName name_of(const RunRecord& run) {
  const auto settings = parse_json(run.config_json);
  const auto setting = [&settings](const char* key) -> std::string {
    if (!settings.is_object()) return unknown_cell;
    const auto found = settings.find(key);
    if (found == settings.end() || !found->is_string()) return unknown_cell;
    return printable(found->get<std::string>());
  };
  return {run.id, printable(run.model), setting("strategy"), setting("codec")};
}

std::string to_text(const RunName& name) {
  return fmt::format("run {} ({}, {}, {})", name.number, name.model, name.method, name.codec);
}

}  // namespace fl::server
