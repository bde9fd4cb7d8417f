// SPDX-License-Identifier: Apache-2.0
// The squared distances between vectors, which are given block by block, in order. The same bits
// with any number of threads and on every machine: differences and sums are doubles, in one order.
#pragma once

#include "shared/base/async/parallel.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace fl::server {

/// A square matrix of doubles.
class SquareMatrix {
 public:
  explicit SquareMatrix(std::size_t size) : size_(size), values_(size * size) {}
  [[nodiscard]] std::size_t size() const { return size_; }
  double& operator()(std::size_t row, std::size_t column) { return values_[row * size_ + column]; }
  double operator()(std::size_t row, std::size_t column) const {
    return values_[row * size_ + column];
  }

 private:
  std::size_t size_;
  std::vector<double> values_;
};

/// Adds the next block to the squared distances of `rows` vectors: sums(i, j) and sums(j, i). The
/// block has the vectors' values row after row. `scratch` is memory for the block in doubles.
void add_distances(std::span<const float> block, std::size_t rows, Lanes& lanes,
                   std::vector<double>& scratch, SquareMatrix& sums);

/// The indices of the `count` smallest values, in ascending order. Of equal ones the first.
[[nodiscard]] std::vector<std::size_t> indices_of_smallest(const std::vector<double>& values,
                                                           std::size_t count);

}  // namespace fl::server
