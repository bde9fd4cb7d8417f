// SPDX-License-Identifier: Apache-2.0
// A CSV file of a test, and the schema beside it.
#pragma once

#include "tests/client/learn/reader_checks.hpp"

#include <cmath>

namespace fl::test {

using Values = std::vector<float>;

struct Table {
  TemporaryFolder folder;
  std::string file = (folder / "table.csv").string();
  std::string schema = (folder / "schema.json").string();

  explicit Table(std::string_view text) { write_plain(file, text); }
  [[nodiscard]] std::string data(std::string_view options) const {
    return "csv:" + file + "," + std::string(options);
  }
  DataSet read(std::string_view options, std::string_view group = "") const {
    return read_twice(data(options), group);
  }
  void with_schema(std::string_view text) const { write_plain(schema, text); }
  /// It fails at this line, with all of these words.
  void expect(std::string_view options, int line, std::vector<std::string> words,
              std::string_view group = "") const {
    words.push_back(file + ", line " + std::to_string(line) + ": ");
    expect_no_data(data(options), Errc::corrupt, words, group);
  }
};

inline bool is_missing_all(const Values& values) {
  return std::ranges::all_of(values, [](float value) { return std::isnan(value); });
}

}  // namespace fl::test
