// SPDX-License-Identifier: Apache-2.0
// What the tests of readers share: reading in memory and on the disk, and errors.
#pragma once

#include "client/learn/data/readers/readers.hpp"
#include "tests/client/learn/idx_files.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace fl::test {

/// The values of the data set, to compare and to print. A missing value is "nan".
inline std::vector<float> values_of(const DataSet& set) {
  const auto values = set.inputs.as<float>();
  return {values.begin(), values.end()};
}

/// Reads it in memory, and again with one byte of memory, which must give the same.
inline DataSet read_twice(std::string_view data, std::string_view group = "") {
  DataSet memory = read_data({.text = data, .group = group}).value();
  const DataSet disk = read_data({.text = data, .group = group, .memory_bytes = 1}).value();
  CHECK(std::ranges::equal(memory.inputs.bytes(), disk.inputs.bytes()));
  CHECK(memory.shape == disk.shape);
  CHECK(memory.labels == disk.labels);
  CHECK(memory.targets == disk.targets);
  CHECK(memory.pieces == disk.pieces);
  CHECK(memory.token_bytes == disk.token_bytes);
  CHECK(memory.vocabulary == disk.vocabulary);
  CHECK(memory.groups == disk.groups);
  CHECK(memory.group_names == disk.group_names);
  CHECK(memory.source == data);
  CHECK(memory.size() > 0);
  return memory;
}

/// Reading fails with this code and a message that has all of these words.
inline void expect_no_data(std::string_view data, Errc code, std::vector<std::string> words,
                           std::string_view group = "") {
  const auto set = read_data({.text = data, .group = group});
  CAPTURE(data);
  REQUIRE(set.has_error());
  CAPTURE(set.error().message());
  CHECK(set.error().code() == code);
  for (const std::string& word : words) {
    CAPTURE(word);
    CHECK(set.error().message().find(word) != std::string::npos);
  }
}

}  // namespace fl::test
