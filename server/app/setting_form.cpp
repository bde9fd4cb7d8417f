// SPDX-License-Identifier: Apache-2.0
#include "server/app/setting_form.hpp"

#include "server/app/run_queue.hpp"
#include "server/app/setting_flags.hpp"
#include "server/run/settings_table.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

namespace fl::server {

namespace {

using nlohmann::json;

/// Adds the kind of a value of this type and, of a number, its range, for the input of a form.
template <class T>
void add_kind(const RunSettingRow& row, json& field) {
  if constexpr (is_number<T>) {
    NumberRange range = row.range;
    range.least = std::max<double>(range.least, row.flag_min);
    field["kind"] = std::is_floating_point_v<T> ? "real" : "whole";
    field["limits"] = range.text();
  } else {
    field["kind"] = "text";
  }
}

std::string default_of(const RunSettingRow& row, const RunSettings& defaults) {
  if (!row.default_shown.empty()) return std::string(row.default_shown);
  const auto text = [&]<class T>(T RunSettings::*of) -> std::string {
    if constexpr (std::is_same_v<T, NamedShapes>)
      return "";
    else
      return shown_default(defaults.*of);
  };
  return std::visit(text, row.field);
}

}  // namespace

Result<std::string> setting_form(Store& store) {
  FL_TRY(const RunSettings defaults, with_newest_model(store.runs(), RunSettings()));
  const RunSettingTable table = run_setting_table();
  json settings = json::array();
  for (const RunSettingRow& row : table.rows()) {
    if (row.flag.empty() || row.is_existing_file) continue;
    json field{{"name", row.json_key()},  {"flag", "--" + std::string(row.flag)},
               {"group", row.group},      {"is_usual", row.is_usual},
               {"help", row.help_text()}, {"default", default_of(row, defaults)}};
    const auto add = [&]<class T>(T RunSettings::*) { add_kind<T>(row, field); };
    std::visit(add, row.field);
    settings.push_back(std::move(field));
  }
  return json_text(json{{"settings", std::move(settings)}});
}

}  // namespace fl::server
