// SPDX-License-Identifier: Apache-2.0
// The flags of a table of settings (server/run/setting_row.hpp), for a program that uses CLI11. A
// TOML file of flags takes the same names (shared/flags/flags.hpp).
#pragma once

#include "server/run/setting_row.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <type_traits>

namespace fl::server {

/// The default that --help shows of a field with this value.
template <class T>
[[nodiscard]] std::string shown_default(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "on" : "off";
  return fmt::format("{}", value);
}

/// Adds one row's flag. When it is given, the value goes into `settings` and the flag's name into
/// `given`; both must outlive the parsing, as must the row.
template <class Settings, class Work>
void declare_setting(CLI::App& app, const SettingRow<Settings, Work>& row, Settings& settings,
                     std::set<std::string>& given) {
  const auto declare = [&]<class T>(T Settings::*of) {
    if constexpr (!std::is_same_v<T, NamedShapes>) {
      const auto take = [&row, &settings, &given, of](const T& wanted) {
        settings.*of = wanted;
        // No check that the file exists: the server may run on another machine, or later.
        if constexpr (std::is_same_v<T, std::string>)
          if (row.is_existing_file) settings.*of = std::filesystem::absolute(wanted).string();
        given.insert(std::string(row.flag));
      };
      auto* option =
          app.add_option_function<T>(fmt::format("--{}", row.flag), take, row.help_text())
              ->group("The run (stored with it; a restart does not need these flags)")
              ->default_str(row.default_shown.empty() ? shown_default(settings.*of)
                                                      : std::string(row.default_shown));
      if constexpr (std::is_same_v<T, bool>)  // A TOML file has true and false.
        option->type_name("TEXT")->check(
            one_of({"on", "off", "true", "false"}).description("{on,off}"));
      else if constexpr (std::is_unsigned_v<T>)
        option->check(whole_number(row.flag_min, std::numeric_limits<T>::max()));
      if constexpr (std::is_floating_point_v<T>) option->check(real_number());
      if (row.is_existing_file) option->check(CLI::ExistingFile);
    }
  };
  std::visit(declare, row.field);
}

template <class Settings, class Work>
void declare_settings(CLI::App& app, const SettingTable<Settings, Work>& table, Settings& settings,
                      std::set<std::string>& given) {
  for (const auto& row : table.rows()) {
    if (!row.flag.empty()) declare_setting(app, row, settings, given);
  }
}

}  // namespace fl::server
