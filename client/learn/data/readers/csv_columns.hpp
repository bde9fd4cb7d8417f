// SPDX-License-Identifier: Apache-2.0
// CsvColumns: what each column of a table is used for, from its first line, the options of --data
// and --partition, and the schema. Any thread.
#pragma once

#include "client/learn/data/readers/csv_rows.hpp"
#include "client/learn/data/readers/csv_schema.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr std::size_t csv_shown_bytes_max = 64;  // Bytes of a name or field in an error.

/// The text in quotes, for an error; a long one is cut.
[[nodiscard]] std::string csv_shown(std::string_view text);

/// The options of --data and --partition.
struct CsvPlan {
  std::vector<std::string> targets;
  bool reads_targets = true;  // Else their columns may be missing, and are ignored.
  std::vector<std::string> ignored;
  std::string row_name;  // The column with the rows' names; "": the first, if it has no name.
  std::string group;
  std::optional<CsvSchema> schema;
};

struct CsvColumn {
  enum class Role {
    number,
    words,
    target,
    classes,
    group,
    ignored,
    row_name,  // The name of the row, which is no input.
    empty,     // It has no name, so it may hold nothing.
  };
  std::string name;
  Role role = Role::number;
  std::size_t at = 0;  // The index of its first input, or of its target.
  std::map<std::string, std::uint32_t, std::less<>> words = {};
};

/// The use of a first column without a name, which holds the names of the rows.
[[nodiscard]] inline CsvColumn::Role role_of_nameless(const CsvPlan& plan) {
  return plan.row_name.empty() ? CsvColumn::Role::row_name : CsvColumn::Role::ignored;
}

struct CsvColumns {
  std::vector<CsvColumn> all;  // In the order of the file.
  std::size_t inputs = 0;      // At least 1.
  std::uint32_t classes = 0;   // Words that the schema has for the target.
};

/// Reads the first line and gives each column its use. A first column without a name holds the
/// names or numbers of the rows, as R and pandas write them, which the log says.
/// Errors name the file, the line, the column and the remedy.
[[nodiscard]] Result<CsvColumns> read_csv_columns(CsvRows& rows, const CsvPlan& plan);

}  // namespace fl
