// SPDX-License-Identifier: Apache-2.0
#include "server/history/own_schema.hpp"

#include "server/history/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

struct SchemaObject {
  std::string type;
  /// The table that an index or a trigger belongs to; for tables and views their own name.
  std::string table;
  std::string sql;
};
using SchemaObjects = std::map<std::string, SchemaObject, std::less<>>;

struct Schema {
  int version = 0;
  SchemaObjects objects;
};

/// Where the comment ends that begins at `at`; `at` itself where none begins.
std::size_t behind_comment(std::string_view sql, std::size_t at) {
  const bool is_line = sql.substr(at, 2) == "--";
  if (!is_line && sql.substr(at, 2) != "/*") return at;
  const std::size_t end = is_line ? sql.find('\n', at) : sql.find("*/", at + 2);
  return end == sql.npos ? sql.size() : end + (is_line ? 1 : 2);
}

/// The statement without comments, and with one space for each run of spaces outside of quotes:
/// statements that are equal then are the same for SQLite.
std::string plain(std::string_view sql) {
  std::string text;
  for (std::size_t at = 0; at < sql.size();) {
    const char c = sql[at];
    const std::size_t behind = behind_comment(sql, at);
    if (behind != at || c == ' ' || c == '\n' || c == '\t' || c == '\r') {
      if (!text.empty() && text.back() != ' ') text += ' ';
      at = std::max(behind, at + 1);
    } else if (c == '\'' || c == '"' || c == '`' || c == '[') {
      const std::size_t end = std::min(sql.find(c == '[' ? ']' : c, at + 1), sql.size() - 1);
      text += sql.substr(at, end + 1 - at);
      at = end + 1;
    } else {
      text += c;
      ++at;
    }
  }
  return text;
}

/// SQLite takes names that differ only in the case of ASCII letters for one.
std::string lower(std::string name) {
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

/// Reads them in one statement, as another process may be migrating the database at this moment.
Result<Schema> read_objects(Database& db) {
  Schema schema;
  const auto read = [&schema](const Row& row) {
    schema.version = static_cast<int>(row.integer(0));
    SchemaObject object{row.text(1), lower(row.text(3)), plain(row.text(4))};
    const auto [at, is_new] = schema.objects.emplace(lower(row.text(2)), std::move(object));
    if (!is_new) at->second.sql.clear();  // Two of one name: none of them is ours.
    return true;
  };
  FL_CHECK(
      db.query("SELECT (SELECT user_version FROM pragma_user_version), type, name, tbl_name,"
               " sql FROM sqlite_schema WHERE sql IS NOT NULL",
               read));
  return schema;
}

/// Returns the objects that the first `version` migrations make.
Result<SchemaObjects> make_objects(int version) {
  FL_TRY(const auto db, Database::open({.path = ":memory:"}));
  for (const Migration& migration : history_migrations().first(static_cast<std::size_t>(version)))
    FL_CHECK(db->script(migration.sql));
  FL_TRY(Schema schema, read_objects(*db));
  return std::move(schema.objects);
}

/// Returns make_objects(version), made once for each version.
Result<SchemaObjects> own_objects(int version) {
  static std::mutex mutex;
  static std::map<int, SchemaObjects> made;
  const std::lock_guard lock(mutex);
  if (const auto found = made.find(version); found != made.end()) return found->second;
  FL_TRY(SchemaObjects objects, make_objects(version));
  return made.emplace(version, std::move(objects)).first->second;
}

Error not_ours(std::string_view type, std::string_view name) {
  return {
      Errc::conflict,
      fmt::format("its {} '{}' is not one that fl-server makes, so nothing was read: somebody "
                  "has changed this history. Ask for the file as fl-server wrote it, or restore "
                  "it from a copy",
                  type, name)};
}

}  // namespace

Result<void> check_own_schema(Database& db) {
  FL_TRY(const Schema found, read_objects(db));
  const int newest = static_cast<int>(history_migrations().size());
  FL_TRY(const SchemaObjects own, own_objects(std::clamp(found.version, 0, newest)));
  for (const auto& [name, object] : own) {
    const auto there = found.objects.find(name);
    if (there == found.objects.end() || there->second.type != object.type ||
        there->second.sql != object.sql)
      return not_ours(object.type, name);
  }
  for (const auto& [name, object] : found.objects) {
    if (object.type == "trigger" && !own.contains(name) && own.contains(object.table))
      return not_ours(object.type, name);
  }
  return {};
}

}  // namespace fl::server
