// SPDX-License-Identifier: Apache-2.0
// Medians and trimmed means of each column of a few rows.
#pragma once

#include <cstddef>
#include <span>

namespace fl::server {

/// The columns [begin, end) of a matrix of floats, which has `columns` of them and `rows` rows.
struct Columns {
  std::span<float> matrix;
  std::size_t rows;
  std::size_t columns;
  std::size_t begin;
  std::size_t end;
  [[nodiscard]] float* row(std::size_t index) const { return &matrix[index * columns]; }
};

/// Sorts each column, the smallest value into row 0. No value is NaN.
void sort_columns(const Columns& at);

/// out[c] = the mean of the rows [drop, rows - drop) of column c, added up in their order. Of
/// sorted columns: the trimmed mean; with drop = (rows - 1) / 2 the median.
void middle_means(const Columns& at, std::size_t drop, std::span<float> out);

}  // namespace fl::server
