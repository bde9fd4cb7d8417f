// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/shards/cut.hpp"

#include <algorithm>

namespace fl::site {

std::vector<UnitCut> cut_units(std::span<const Extent> units, std::int64_t ranks) {
  std::vector<UnitCut> cuts;
  std::int64_t at = 0;
  for (const Extent& unit : units) {
    const std::int64_t sharers = ranks / unit.apart;
    cuts.push_back({unit, (unit.count + sharers - 1) / sharers, at});
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
    const std::int64_t number = rank / cut.unit.apart;
    const std::int64_t first = std::min(number * cut.part, cut.unit.count);
    const std::int64_t end = std::min(first + cut.part, cut.unit.count);
    if (first < end) pieces.push_back({cut.unit.begin + first, end - first, cut.at});
  }
  return pieces;
}

std::vector<Segment> segments_of(const UnitCut& cut, std::span<const ReadTensor> tensors,
                                 std::int64_t number) {
  std::vector<Segment> segments;
  std::int64_t at = 0;
  for (const ReadTensor& tensor : tensors) {
    const std::int64_t first = std::max(at, number * cut.part);
    const std::int64_t end = std::min(at + tensor.elements, (number + 1) * cut.part);
    at += tensor.elements;
    if (first >= end) continue;
    Segment* const last = segments.empty() ? nullptr : &segments.back();
    if (last != nullptr && last->format == tensor.format && last->begin + last->count == first)
      last->count += end - first;
    else
      segments.push_back({first, end - first, tensor.format});
  }
  std::ranges::stable_partition(
      segments, [](const Segment& one) { return one.format == NumberFormat::fp32; });
  return segments;
}

std::int64_t bytes_of(std::span<const Segment> segments) {
  std::int64_t bytes = 0;
  for (const Segment& one : segments)
    bytes += one.count * (one.format == NumberFormat::fp32 ? 4 : 2);
  return bytes;
}

}  // namespace fl::site
