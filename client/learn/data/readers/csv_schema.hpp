// SPDX-License-Identifier: Apache-2.0
// CsvSchema: what the columns of a CSV file are, in a JSON file that all members share, so that
// words mean the same numbers everywhere:
//
//   {"columns": {"age": "number", "sex": ["female", "male"]}, "target": ["no", "yes"]}
//
// The inputs are these columns in this order. A column of words becomes as many inputs as it has
// words: 1 at its word, 0 elsewhere. "target" may be left out, or be "number". Names and words
// are in their normal form (normal_form.hpp). Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace fl {

struct CsvSchema {
  struct Column {
    std::string name;
    std::vector<std::string> words;  // Empty: numbers.
  };
  std::vector<Column> columns;
  std::vector<std::string> classes;  // The words of the target; empty: numbers.
};

/// Errors name the file and the column: invalid_input, not_found, io.
[[nodiscard]] Result<CsvSchema> read_csv_schema(const std::filesystem::path& path);

}  // namespace fl
