// SPDX-License-Identifier: Apache-2.0
// Fuzzes a table and its schema. The input is a byte of choices, a u16, the length of the schema
// (0: none), then the schema, then the table.
#include "client/learn/data/readers/readers.hpp"

#include "tests/fuzz/data_set.hpp"
#include "tests/fuzz/memory_path.hpp"

#include <fmt/format.h>

#include <algorithm>

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < 1 + sizeof(std::uint16_t)) return 0;
  const unsigned choices = data[0];
  const Bytes both = input.subspan(1 + sizeof(std::uint16_t));
  const std::size_t schema_bytes =
      std::min<std::size_t>(load<std::uint16_t>(input.subspan(1)), both.size());
  const fuzz::MemoryPath schema(both.first(schema_bytes));
  const fuzz::MemoryPath table(both.subspan(schema_bytes));
  std::string text =
      fmt::format("csv:{},target={}", table.path().string(), (choices & 4) != 0 ? "z+y" : "y");
  if (schema_bytes > 0) text += ",schema=" + schema.path().string();
  if ((choices & 1) != 0) text += ",ignore=id";
  if ((choices & 2) != 0) text += ",sep=semicolon";

  const auto set = read_data({.text = text,
                              .group = (choices & 8) != 0 ? "site" : "",
                              .memory_bytes = (choices & 16) != 0 ? std::uint64_t{1} : 0});
  if (!set) {
    fuzz::check_error(set.error());
    return 0;
  }
  fuzz::check_set(*set);
  FL_ASSERT(!set->labels.empty() || !set->targets.empty());
  FL_ASSERT(set->groups.empty() == ((choices & 8) == 0));
  return 0;
}
