// SPDX-License-Identifier: Apache-2.0
// Images that a small model learns in seconds.
#pragma once

#include "client/learn/data/random.hpp"
#include "tests/support/image_data.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace fl::test {

// Images of noise with a bright square, whose place depends on the class.
inline DataSet made_up_images(std::uint32_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> labels;
  std::vector<std::uint8_t> pixels;
  Random random(seed, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    labels.push_back(random.below(10));
    for (std::uint32_t pixel = 0; pixel < 784; ++pixel) {
      const bool bright =
          pixel / 28 / 6 == labels.back() / 4 && pixel % 28 / 7 == labels.back() % 4;
      pixels.push_back(static_cast<std::uint8_t>(random.below(100) + (bright ? 155 : 0)));
    }
  }
  return images(28, 28, std::move(pixels), std::move(labels));
}

/// A client's data: these images to train on, and those held out.
inline LocalData with_holdout(const DataSet& train, const DataSet& holdout) {
  return local(joined(train, holdout), holdout.size());
}
inline LocalData to_train_on(DataSet set) { return local(std::move(set)); }
inline LocalData held_out(DataSet set) {
  const std::uint32_t all = set.size();
  return local(std::move(set), all);
}

}  // namespace fl::test
