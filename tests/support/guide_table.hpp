// SPDX-License-Identifier: Apache-2.0
// Tables of the guide, for tests that hold them against a table of the code. The test's program
// defines FL_SOURCE_FOLDER.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

using Cells = std::vector<std::string>;

/// The cells of "| a | b |", without the spaces around them.
inline Cells cells_of(const std::string& line) {
  Cells cells;
  for (std::size_t begin = 1; begin < line.size();) {
    const std::size_t end = std::min(line.find('|', begin), line.size());
    std::string cell = line.substr(begin, end - begin);
    cell.erase(0, cell.find_first_not_of(' '));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(std::move(cell));
    begin = end + 1;
  }
  return cells;
}

/// The texts between backquotes.
inline std::vector<std::string> quoted_in(const std::string& text) {
  std::vector<std::string> all;
  for (std::size_t begin = text.find('`'); begin != std::string::npos;) {
    const std::size_t end = text.find('`', begin + 1);
    REQUIRE(end != std::string::npos);
    all.push_back(text.substr(begin + 1, end - begin - 1));
    begin = text.find('`', end + 1);
  }
  return all;
}

/// The rows of the tables on a page of docs/ whose first line begins with `heading`, without the
/// ruler below it. The test fails if there is no such table.
inline std::vector<Cells> guide_table(std::string_view page, std::string_view heading) {
  std::ifstream file(std::string(FL_SOURCE_FOLDER "/docs/") + std::string(page));
  REQUIRE(file.good());
  std::vector<Cells> rows;
  bool is_table = false;
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(heading)) {
      is_table = is_there = true;
      continue;
    }
    is_table = is_table && line.starts_with("|");
    if (is_table && !line.starts_with("|-")) rows.push_back(cells_of(line));
  }
  REQUIRE(is_there);
  return rows;
}

}  // namespace fl::test
