// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/block_map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

BlockMap::BlockMap(const Layout& layout, std::uint32_t block_elements)
    : layout_(&layout), block_elements_(block_elements) {
  FL_ASSERT(block_elements >= block_elements_min && block_elements <= block_elements_max);
  first_block_.reserve(layout.tensors().size() + 1);
  std::uint64_t blocks = 0;
  for (const Layout::Tensor& tensor : layout.tensors()) {
    first_block_.push_back(blocks);
    blocks += (tensor.elements + block_elements - 1) / block_elements;
    if (tensor.elements > 0 && tensor.elements <= bare_elements_max) ++bare_blocks_;
  }
  first_block_.push_back(blocks);
}

Block BlockMap::at(std::uint64_t index) const {
  FL_ASSERT(index < blocks());
  // Finds the last tensor whose first block is at or before `index`. This also skips empty tensors,
  // which begin at the same block as the next tensor.
  const auto after = std::ranges::upper_bound(first_block_, index);
  const auto t = static_cast<std::size_t>(after - first_block_.begin()) - 1;
  const Layout::Tensor& tensor = layout_->tensors()[t];
  const std::uint64_t first = (index - first_block_[t]) * block_elements_;
  return {.tensor = static_cast<std::uint32_t>(t),
          .elements = static_cast<std::uint32_t>(
              std::min<std::uint64_t>(block_elements_, tensor.elements - first)),
          .first = first,
          .flat = tensor.offset + first};
}

std::uint64_t BlockMap::index_at(std::uint64_t flat) const {
  const auto& tensors = layout_->tensors();
  // The last tensor that begins at or before the element. Empty ones that begin there stand before.
  const auto after = std::ranges::upper_bound(tensors, flat, {}, &Layout::Tensor::offset);
  FL_ASSERT(after != tensors.begin());
  const auto tensor = static_cast<std::uint32_t>(after - tensors.begin()) - 1;
  return index_of(tensor, flat - tensors[tensor].offset);
}

std::string BlockMap::describe(std::uint64_t index) const {
  const Block block = at(index);
  return fmt::format("block {} ({}[{}..{}])", index, layout_->tensors()[block.tensor].name,
                     block.first, block.first + block.elements - 1);
}

std::size_t bytes_max_in_parts(std::size_t elements,
                               const std::function<std::size_t(std::size_t)>& bytes_max) {
  if (elements <= part_elements_max) return bytes_max(elements);
  const std::size_t parts = part_count(elements);
  const std::size_t last = elements - (parts - 1) * part_elements_max;
  const std::size_t in_parts = 1 + parts * sizeof(std::uint32_t) +
                               (parts - 1) * bytes_max(part_elements_max) + bytes_max(last);
  return std::max(bytes_max(elements), in_parts);
}

}  // namespace fl::codec
