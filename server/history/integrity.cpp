// SPDX-License-Identifier: Apache-2.0
#include "server/history/integrity.hpp"

#include "server/history/sqlite.hpp"
#include "server/history/store.hpp"

namespace fl::server {

Result<std::string> find_damage(const std::filesystem::path& history) {
  Database::Options options;
  options.path = history;
  options.read_only = true;
  options.busy_ms_max = static_cast<int>(Store::busy_max.count());
  FL_TRY(const auto database, Database::open(options));
  const auto text_of = [](const Row& row) { return row.text(0); };
  FL_TRY(const auto rows, database->query("PRAGMA quick_check(1)", text_of));
  const bool is_whole = rows.size() == 1 && rows.front() == "ok";
  return is_whole ? std::string() : rows.empty() ? "no answer" : rows.front();
}

}  // namespace fl::server
