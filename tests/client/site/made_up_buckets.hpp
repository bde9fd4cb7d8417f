// SPDX-License-Identifier: Apache-2.0
// Gradients that every program can make up in the same way (gold/make_hook_gold.py does).
// Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "client/site/rank/gradient_hook.hpp"

#include <torch/torch.h>
#include <vector>

namespace fl::test {

using namespace fl::site;

/// Multiples of 1/512 between -2 and 2.
inline torch::Tensor made_up_values(std::int64_t count, std::int64_t step, std::int64_t rank,
                                    std::int64_t bucket) {
  const std::int64_t first = step * 104'729 + rank * 1'299'709 + bucket * 15'485'863;
  const torch::Tensor numbers = torch::arange(count, torch::kInt64) * 7919 + first;
  return (numbers.remainder(2003) - 1001).to(torch::kFloat32) / 512;
}

using Shapes = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;

/// The shapes of a step's buckets, each with its parameter's number.
inline const std::vector<Shapes>& bucket_shapes() {
  static const std::vector<Shapes> shapes = {
      {{3, {12, 10}}, {2, {10}}, {1, {6, 5, 3, 3}}},
      {{0, {16, 12}}, {4, {7}}},
  };
  return shapes;
}

inline Bucket made_up_bucket(const std::vector<Shapes>& shapes, std::size_t index,
                             std::int64_t step, std::int64_t rank) {
  Bucket bucket{.index = index, .is_last = index + 1 == shapes.size(), .gradient = {}, .parts = {}};
  std::int64_t offset = 0;
  for (const auto& [parameter, shape] : shapes[index]) {
    bucket.parts.push_back({.parameter = parameter, .offset = offset, .shape = shape});
    offset += bucket.parts.back().elements();
  }
  bucket.gradient = made_up_values(offset, step, rank, static_cast<std::int64_t>(index));
  return bucket;
}

}  // namespace fl::test
