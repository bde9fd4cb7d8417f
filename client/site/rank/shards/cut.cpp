// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/shards/cut.hpp"

#include <algorithm>

namespace fl::site {

std::vector<UnitCut> cut_units(std::span<const Extent> units, std::int64_t ranks) {
  std::vector<UnitCut> cuts;
  std::int64_t at = 0;
  for (const Extent& unit : units) {
    cuts.push_back({unit, (unit.count + ranks - 1) / ranks, at});
    at += cuts.back().part;
  }
  return cuts;
}

std::int64_t elements_of(std::span<const UnitCut> cuts) {
  return cuts.empty() ? 0 : cuts.back().at + cuts.back().part;
}

std::vector<Piece> pieces_of(std::span<const UnitCut> cuts, std::int64_t rank) {
  std::vector<Piece> pieces;
  for (const UnitCut& cut : cuts) {
    const std::int64_t first = std::min(rank * cut.part, cut.unit.count);
    const std::int64_t end = std::min(first + cut.part, cut.unit.count);
    if (first < end) pieces.push_back({cut.unit.begin + first, end - first, cut.at});
  }
  return pieces;
}

}  // namespace fl::site
