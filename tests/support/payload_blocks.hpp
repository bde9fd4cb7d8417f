// SPDX-License-Identifier: Apache-2.0
// Finds the blocks of a payload, as reader.hpp describes them, for tests that look at their bytes.
// A second implementation: it does not ask the map which blocks are bare.
#pragma once

#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl::testing {

using namespace fl::codec;

struct PlacedBlock {
  Block block;
  bool is_bare = false;
  std::size_t size_at = 0;  // In the table, unless it is bare.
  std::size_t begin = 0;
  std::size_t bytes = 0;
};

inline std::vector<PlacedBlock> placed_blocks(const Layout& layout, Bytes payload) {
  const BlockMap map(layout, load<std::uint32_t>(payload, 4));
  std::vector<PlacedBlock> placed;
  std::size_t at = 16;
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    PlacedBlock& next = placed.emplace_back();
    next.block = map.at(i);
    next.is_bare =
        payload[3] == std::byte{'4'} && layout.tensors()[next.block.tensor].elements <= 2;
    next.size_at = at;
    if (!next.is_bare) at += 4;
  }
  for (PlacedBlock& next : placed) {
    next.begin = at;
    next.bytes =
        next.is_bare ? 4 * next.block.elements : load<std::uint32_t>(payload, next.size_at);
    at += next.bytes;
  }
  return placed;
}

/// Calls use(block, bytes) for each block that is not bare, in order.
template <class Use>
void for_each_block(const Layout& layout, Bytes payload, const Use& use) {
  for (const PlacedBlock& placed : placed_blocks(layout, payload)) {
    if (!placed.is_bare) use(placed.block, payload.subspan(placed.begin, placed.bytes));
  }
}

}  // namespace fl::testing
