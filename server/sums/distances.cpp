// SPDX-License-Identifier: Apache-2.0
#include "server/sums/distances.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace fl::server {

namespace {

/// The number of lanes of a sum. They are added in one fixed order, so that a compiler may use
/// vectors.
constexpr std::size_t sum_lanes = 8;

double squared_distance(const double* a, const double* b, std::size_t n) {
  std::array<double, sum_lanes> sums{};
  std::size_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
    for (std::size_t lane = 0; lane < sum_lanes; ++lane) {
      const double difference = a[i + lane] - b[i + lane];
      sums[lane] += difference * difference;
    }
  }
  for (std::size_t lane = 0; i < n; ++i, ++lane) {
    const double difference = a[i] - b[i];
    sums[lane] += difference * difference;
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

void add_distances(std::span<const float> block, std::size_t rows, Lanes& lanes,
                   std::vector<double>& scratch, SquareMatrix& sums) {
  const std::size_t elements = block.size() / rows;
  scratch.assign(block.begin(), block.end());
  lanes.for_each_run(rows, 1, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = i + 1; j < rows; ++j) {
        sums(i, j) += squared_distance(&scratch[i * elements], &scratch[j * elements], elements);
        sums(j, i) = sums(i, j);
      }
    }
  });
}

std::vector<std::size_t> indices_of_smallest(const std::vector<double>& values, std::size_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t index) { return values[index]; });
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

}  // namespace fl::server
