// SPDX-License-Identifier: Apache-2.0
// Fuzzes a file of numpy's. The input is a byte of choices, then the file.
#include "client/learn/data/readers/readers.hpp"

#include "tests/fuzz/data_set.hpp"
#include "tests/fuzz/memory_path.hpp"

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const fuzz::MemoryPath file(std::as_bytes(std::span(data, size)).subspan(1));
  const std::string text = "npz:" + file.path().string();
  const bool by_site = (data[0] & 1) != 0;
  const auto set = read_data({.text = text,
                              .group = by_site ? "site" : "",
                              .memory_bytes = (data[0] & 2) != 0 ? std::uint64_t{1} : 0});
  if (!set) {
    fuzz::check_error(set.error());
    return 0;
  }
  fuzz::check_set(*set);
  FL_ASSERT(!set->targets.empty());
  FL_ASSERT(set->groups.empty() != by_site);
  return 0;
}
