// SPDX-License-Identifier: Apache-2.0
#include "server/sums/sketch_sums.hpp"

#include <algorithm>
#include <utility>

namespace fl::server {

std::optional<codec::SketchShape> SketchSums::shape_of(const codec::Block& block,
                                                       std::uint32_t block_elements) const {
  if (sketches_.of_tensor.empty() || block_elements != sketches_.block_elements ||
      block.elements < codec::sketched_min || block.elements > codec::part_elements_max)
    return std::nullopt;
  const auto& whole = sketches_.of_tensor[block.tensor];
  if (!whole) return std::nullopt;
  return share_of_block(*whole, block.elements);
}

Scan SketchSums::add(const codec::Block& block, const codec::SketchCells& sketch, Adding& adding) {
  const auto cells = sketch.cells;
  const Scan scan = kernels().scan(cells.data(), cells.size());
  const MutexLock lock(mutex_);
  Sums& sums = blocks_[block.flat];
  if (sums.cells.empty()) {
    sums.block = block;
    sums.shape = sketch.shape;
    sums.cells.resize(cells.size());
  }
  FL_ASSERT(sums.shape == sketch.shape && sums.block.elements == block.elements);
  adding.add(sums.range, scan.max_abs, cells, sums.cells.data());
  recovered_.of = nullptr;
  return Scan{.max_abs = 0,
              .sum_squares = scan.sum_squares / sketch.shape.rows,
              .first_bad = block.elements};
}

bool SketchSums::begin_again(std::uint64_t total_weight) {
  bool has_begun = false;
  const MutexLock lock(mutex_);
  recovered_.of = nullptr;
  for (auto& [flat, sums] : blocks_) {
    if (sums.cells.empty() || !sums.range.begin_again(total_weight)) continue;
    std::ranges::fill(sums.cells, 0);
    has_begun = true;
  }
  return has_begun;
}

void SketchSums::recover(const Sums& sums, double divisor) const {
  if (recovered_.of == &sums && recovered_.divisor == divisor) return;
  recovered_.of = nullptr;  // If an allocation below throws, nothing is recovered.
  std::vector<float> cells(sums.cells.size());
  kernels().scale_fixed(sums.cells.data(), cells.size(), mean_factor_of(divisor, sums.range),
                        cells.data());
  recovered_.values =
      sketch_estimates({.shape = sums.shape, .key = sketch_key(sums.block), .cells = cells},
                       sums.block.elements, recovered_.room);
  recovered_.of = &sums;
  recovered_.divisor = divisor;
}

void SketchSums::add_mean(std::uint64_t first, double divisor, std::span<float> out) const {
  const MutexLock lock(mutex_);
  // Visits the block that may begin before `out` and reach into it, and those that begin in it.
  auto at = blocks_.upper_bound(first);
  if (at != blocks_.begin()) --at;
  for (; at != blocks_.end() && at->first < first + out.size(); ++at) {
    const Sums& sums = at->second;
    const std::uint64_t begin = std::max(first, at->first);
    const std::uint64_t end = std::min(first + out.size(), at->first + sums.block.elements);
    if (sums.cells.empty() || begin >= end) continue;
    recover(sums, divisor);
    for (std::uint64_t i = begin; i < end; ++i) out[i - first] += recovered_.values[i - at->first];
  }
}

void SketchSums::reset(codec::SummedSketches sketches) {
  sketches_ = std::move(sketches);
  const MutexLock lock(mutex_);
  recovered_.of = nullptr;
  std::erase_if(blocks_, [](const auto& entry) { return entry.second.cells.empty(); });
  for (auto& [flat, sums] : blocks_) {
    sums.cells.clear();
    sums.range.reset();
  }
}

}  // namespace fl::server
