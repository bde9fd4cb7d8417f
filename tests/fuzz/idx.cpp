// SPDX-License-Identifier: Apache-2.0
// Fuzzes a pair of IDX files. The input is a u16, the length of the file of images, then that file,
// then the file of labels.
#include "client/learn/data/idx.hpp"

#include "tests/fuzz/memory_path.hpp"

#include <algorithm>

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t classes = 10;
  const Bytes input = std::as_bytes(std::span(data, size));
  if (size < sizeof(std::uint16_t)) return 0;
  const Bytes both = input.subspan(sizeof(std::uint16_t));
  const std::size_t image_bytes = std::min<std::size_t>(load<std::uint16_t>(input), both.size());
  const fuzz::MemoryPath images(both.first(image_bytes));
  const fuzz::MemoryPath labels(both.subspan(image_bytes));

  const auto set = read_idx(images.path(), labels.path(), classes);
  if (!set) {
    FL_ASSERT(set.error().code() == Errc::corrupt || set.error().code() == Errc::too_large);
    return 0;
  }
  FL_ASSERT(set->size() > 0);
  FL_ASSERT(set->rows > 0 && set->rows <= image_side_max);
  FL_ASSERT(set->columns > 0 && set->columns <= image_side_max);
  FL_ASSERT(set->pixels.size() == std::size_t{set->size()} * set->rows * set->columns);
  FL_ASSERT(std::ranges::max(set->labels) < classes);
  return 0;
}
