// SPDX-License-Identifier: Apache-2.0
#include "server/round/mean_sample.hpp"

#include "shared/base/limits.hpp"

#include <algorithm>

namespace fl::server {

MeanSample::MeanSample(const Layout& layout, std::uint64_t parameters) {
  constexpr std::uint64_t piece = codec::block_elements_default;
  constexpr std::uint64_t pieces = limits::mean_sample_elements / piece;
  if (parameters <= pieces * piece) {
    if (parameters > 0) ranges_.push_back({0, parameters});
  } else {
    // A piece begins at the start of a block of most codecs, so that few additional blocks are
    // decoded.
    const codec::BlockMap blocks(layout, codec::block_elements_default);
    for (std::uint64_t i = 0; i < pieces; ++i) {
      const std::uint64_t middle = parameters / pieces * i + parameters / pieces / 2;
      const std::uint64_t begin = blocks.at(blocks.index_at(middle)).flat;
      if (!ranges_.empty()) ranges_.back().end = std::min(ranges_.back().end, begin);
      ranges_.push_back({begin, std::min(begin + piece, parameters)});
    }
  }
  for (const ElementRange& range : ranges_) values_.emplace_back(range.end - range.begin);
}

ReadValues MeanSample::keep_of(const ReadValues& mean) {
  return [this, &mean](std::uint64_t first, std::span<float> out) -> Result<void> {
    FL_CHECK(mean(first, out));
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const std::uint64_t from = std::max(ranges_[i].begin, first);
      const std::uint64_t to = std::min(ranges_[i].end, first + out.size());
      if (from >= to) continue;
      std::ranges::copy(out.subspan(from - first, to - from),
                        std::span(values_[i]).subspan(from - ranges_[i].begin).begin());
    }
    return {};
  };
}

void MeanSample::read(std::uint64_t first, std::span<float> out) const {
  const auto range = std::ranges::upper_bound(ranges_, first, {}, &ElementRange::end);
  FL_ASSERT(range != ranges_.end() && range->begin <= first && first + out.size() <= range->end);
  const auto& values = values_[static_cast<std::size_t>(range - ranges_.begin())];
  std::ranges::copy(std::span(values).subspan(first - range->begin, out.size()), out.begin());
}

}  // namespace fl::server
