// SPDX-License-Identifier: Apache-2.0
// A sample of what a round makes of its updates: pieces of the mean at even distances, kept while
// the next version is made of all of it. Each update's cosine with the mean is measured on it when
// the round closes, so that costs the same for a model of any size. A model that is not larger than
// the sample is all in it. Not thread-safe.
#pragma once

#include "server/round/update_directions.hpp"
#include "server/versions/make_version.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::server {

class MeanSample {
 public:
  /// `parameters`: how many elements from the front are parameters; the others don't count.
  MeanSample(const Layout& layout, std::uint64_t parameters);

  /// Returns a function that reads `mean` and keeps what it reads of the sample. This object and
  /// `mean` must outlive it.
  [[nodiscard]] ReadValues keep_of(const ReadValues& mean);
  /// Ascending.
  [[nodiscard]] std::span<const ElementRange> ranges() const { return ranges_; }
  /// Reads elements that were kept. Requires: all elements are of one range.
  void read(std::uint64_t first, std::span<float> out) const;

 private:
  std::vector<ElementRange> ranges_;
  std::vector<std::vector<float>> values_;  // One vector for each range.
};

}  // namespace fl::server
