// SPDX-License-Identifier: Apache-2.0
// Finds the blocks of a payload, as reader.hpp describes them, for tests that look at their bytes.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstddef>
#include <cstdint>

namespace fl::testing {

/// Calls use(block, bytes) for each block, in order.
template <class Use>
void for_each_block(const Layout& layout, Bytes payload, const Use& use) {
  constexpr std::size_t header_bytes = 16;
  const BlockMap map(layout, load<std::uint32_t>(payload, 4));
  std::size_t at = header_bytes + 4 * map.blocks();
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const auto size = load<std::uint32_t>(payload, header_bytes + 4 * i);
    use(map.at(i), payload.subspan(at, size));
    at += size;
  }
}

}  // namespace fl::testing
