// SPDX-License-Identifier: Apache-2.0
#include "shared/flags/given_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

namespace fl {

namespace {

constexpr std::string_view verbose = "--verbose";

/// The names of the flags that only one of the two has, or that have different values.
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

}  // namespace

GivenFlags given_flags(const CLI::App& app) {
  GivenFlags flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->empty() || option->get_lnames().empty()) continue;
    flags["--" + option->get_lnames().front()] =
        fmt::format("{}", fmt::join(option->results(), " "));
  }
  return flags;
}

std::string FlagReload::text() const {
  std::string text =
      changed.empty() ? "read the flags again: nothing changes now"
                      : fmt::format("read the flags again, changed: {}", fmt::join(changed, ", "));
  if (!need_restart.empty())
    text += fmt::format("; only a restart changes {}", fmt::join(need_restart, ", "));
  return text;
}

bool FlagReload::has_changed(std::span<const std::string_view> flags) const {
  return std::ranges::find_first_of(changed, flags) != changed.end();
}

FlagReload follow_flags(GivenFlags& followed, const GivenFlags& now,
                        std::span<const std::string_view> live) {
  FlagReload reload;
  for (const std::string& name : changed_flags(followed, now)) {
    if (name == verbose) {
      reload.changed.emplace_back(now.contains(name) ? "the log has more lines (--verbose)"
                                                     : "the log has fewer lines (no --verbose)");
    } else if (std::ranges::find(live, name) != live.end()) {
      reload.changed.push_back(name);
    } else {
      reload.need_restart.push_back(name);
      continue;
    }
    followed.erase(name);
    if (const auto flag = now.find(name); flag != now.end()) followed.insert(*flag);
  }
  return reload;
}

}  // namespace fl
