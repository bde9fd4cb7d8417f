// SPDX-License-Identifier: Apache-2.0
// Maps a record to a table: one list of columns, from which the INSERT, the SELECT and the reader
// of the rows are made, so that they can't disagree.
#pragma once

#include "server/history/rows.hpp"
#include "server/history/sqlite.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// Which statements write a column. All columns are read.
enum Written : unsigned { read_only = 0, on_insert = 1, on_verdict = 2 };

template <class Record>
struct Column {
  std::string_view name;  // Or, in a SELECT alone, an expression.
  unsigned written;       // Flags of Written.
  SqlValue (*value)(const Record& record);
  Result<void> (*read)(const Row& row, int column, Record& record);
};

/// Writes a field in its column as it is; rows.hpp has other codings.
struct AsItIs {
  static SqlValue write(const auto& value) { return to_sql(value); }
  static Result<void> read(const Row& row, int column, auto& value) {
    return from_sql(row, column, value);
  }
};

template <class Record, class T>
Record record_of(T Record::*);

/// A column that is a record's field: column<&TaskRecord::loss>("loss").
template <auto field, class Coding = AsItIs>
constexpr auto column(std::string_view name, unsigned written = on_insert) {
  using Record = decltype(record_of(field));
  return Column<Record>{
      name, written, [](const Record& record) { return Coding::write(record.*field); },
      [](const Row& row, int at, Record& record) { return Coding::read(row, at, record.*field); }};
}

/// A column that is not a field of the record.
struct NamedValue {
  std::string_view name;
  SqlValue value;
};

inline void add_to_list(std::string& list, std::string_view item) {
  if (!list.empty()) list += ", ";
  list += item;
}

template <class Record>
struct Table {
  std::string_view name;  // The name of the table or view.
  std::span<const Column<Record>> columns;

  /// "SELECT <columns> FROM <name> <rest>".
  [[nodiscard]] std::string select(std::string_view rest) const {
    std::string names;
    for (const auto& each : columns) add_to_list(names, each.name);
    return fmt::format("SELECT {} FROM {} {}", names, name, rest);
  }

  /// The reader of a select()'s rows, for Database::query and find.
  [[nodiscard]] auto reader() const {
    return [all = columns](const Row& row) -> Result<Record> {
      Record record;
      int at = 0;
      for (const auto& each : all) FL_CHECK(each.read(row, at++, record));
      return record;
    };
  }

  /// Inserts a row with the record's columns of on_insert, and `more`.
  [[nodiscard]] Result<void> insert(Database& db, const Record& record,
                                    std::initializer_list<NamedValue> more = {}) const {
    std::string names;
    std::string marks;
    std::vector<SqlValue> values;
    const auto add = [&](std::string_view column_name, SqlValue value) {
      values.push_back(std::move(value));
      add_to_list(names, column_name);
      add_to_list(marks, "?");
      marks += std::to_string(values.size());
    };
    for (const NamedValue& each : more) add(each.name, each.value);
    for (const auto& each : columns) {
      if ((each.written & on_insert) != 0) add(each.name, each.value(record));
    }
    FL_CHECK(
        db.run_with(fmt::format("INSERT INTO {} ({}) VALUES ({})", name, names, marks), values));
    return {};
  }

  /// Writes the record's columns of `written`, and `more`, into the rows for which `where` is true,
  /// and returns how many these are. `keys` are the parameters ?1, ?2, … of `where`.
  [[nodiscard]] Result<int> update(Database& db, Written written, const Record& record,
                                   std::initializer_list<NamedValue> more, std::string_view where,
                                   std::initializer_list<SqlValue> keys) const {
    std::vector<SqlValue> values(keys);
    std::string changes;
    const auto add = [&](std::string_view column_name, SqlValue value) {
      values.push_back(std::move(value));
      add_to_list(changes, column_name);
      changes += " = ?";
      changes += std::to_string(values.size());
    };
    for (const NamedValue& each : more) add(each.name, each.value);
    for (const auto& each : columns) {
      if ((each.written & written) != 0) add(each.name, each.value(record));
    }
    return db.run_with(fmt::format("UPDATE {} SET {} WHERE {}", name, changes, where), values);
  }
};

}  // namespace fl::server
