// SPDX-License-Identifier: Apache-2.0
#include "shared/base/given_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

namespace fl {

GivenFlags given_flags(const CLI::App& app) {
  GivenFlags flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->empty() || option->get_lnames().empty()) continue;
    flags["--" + option->get_lnames().front()] =
        fmt::format("{}", fmt::join(option->results(), " "));
  }
  return flags;
}

std::vector<std::string> changed_flags(const GivenFlags& before, const GivenFlags& now) {
  std::vector<std::string> names;
  for (const auto& [name, value] : before) {
    const auto other = now.find(name);
    if (other == now.end() || other->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : now)
    if (!before.contains(name)) names.push_back(name);
  return names;
}

}  // namespace fl
