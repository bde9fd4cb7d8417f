// SPDX-License-Identifier: Apache-2.0
// Small data sets of images, and what is in them.
#pragma once

#include "client/learn/data/data.hpp"

#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace fl::test {

/// Grey images of rows x columns with these pixels, and the label of each.
inline DataSet images(std::int64_t rows, std::int64_t columns, std::vector<std::uint8_t> pixels,
                      std::vector<std::uint32_t> labels, std::uint32_t classes = 10) {
  return {.kind = DataSet::Kind::pixels,
          .shape = {1, rows, columns},
          .inputs = Storage(std::move(pixels)),
          .labels = std::move(labels),
          .classes = classes,
          .source = "images"};
}

inline std::vector<std::uint8_t> pixels_of(const DataSet& set) {
  const auto pixels = set.inputs.as<std::uint8_t>();
  return {pixels.begin(), pixels.end()};
}

/// The pixels of these examples, one after another.
inline std::vector<std::uint8_t> pixels_of(const DataSet& set,
                                           std::span<const std::uint32_t> examples) {
  return pixels_of(set.select(examples));
}

/// The examples of both, which have one shape.
inline DataSet joined(DataSet first, const DataSet& second) {
  const auto more = second.inputs.bytes();
  std::vector<std::byte> bytes(first.inputs.bytes().begin(), first.inputs.bytes().end());
  bytes.insert(bytes.end(), more.begin(), more.end());
  first.inputs = Storage(std::move(bytes));
  first.labels.insert(first.labels.end(), second.labels.begin(), second.labels.end());
  return first;
}

/// A client's data: the first examples of `set` to train on, and the `held_out` last ones.
inline LocalData local(DataSet set, std::uint32_t held_out = 0) {
  LocalData data;
  data.train.resize(set.size() - held_out);
  std::iota(data.train.begin(), data.train.end(), 0U);
  data.holdout.resize(held_out);
  std::iota(data.holdout.begin(), data.holdout.end(), set.size() - held_out);
  data.all = std::make_shared<const DataSet>(std::move(set));
  return data;
}

}  // namespace fl::test
