// SPDX-License-Identifier: Apache-2.0
// Fuzzes a pair of IDX files. The input is a u16, the length of the file of images, then that file,
// then the file of labels.
#include "client/learn/data/idx.hpp"

#include "tests/fuzz/memory_path.hpp"

#include <algorithm>

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < sizeof(std::uint16_t)) return 0;
  const Bytes both = input.subspan(sizeof(std::uint16_t));
  const std::size_t image_bytes = std::min<std::size_t>(load<std::uint16_t>(input), both.size());
  const fuzz::MemoryPath images(both.first(image_bytes));
  const fuzz::MemoryPath labels(both.subspan(image_bytes));

  const auto set = read_idx(images.path(), labels.path());
  if (!set) {
    FL_ASSERT(set.error().code() == Errc::corrupt || set.error().code() == Errc::too_large);
    return 0;
  }
  FL_ASSERT(set->size() > 0);
  for (const std::int64_t side : set->shape) FL_ASSERT(side > 0 && side <= image_side_max);
  FL_ASSERT(set->inputs.bytes().size() == set->size() * set->row_bytes());
  FL_ASSERT(set->labels.size() == set->size());
  FL_ASSERT(std::ranges::max(set->labels) < set->classes);
  return 0;
}
