// SPDX-License-Identifier: Apache-2.0
// Mesh: ranks in a grid of named dimensions, such as "dp" for data parallelism. A group of a
// dimension is the ranks that differ in their coordinate of that dimension alone. Pure arithmetic;
// any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fl::site {

class Mesh {
 public:
  struct Dimension {
    std::string name;
    int size = 1;  // How many coordinates there are, from 0.
  };
  /// The last dimension is the one along which rank numbers follow each other. Sizes are at least
  /// 1, and names differ.
  explicit Mesh(std::vector<Dimension> dimensions);

  /// The number of ranks.
  [[nodiscard]] int size() const { return size_; }
  /// The coordinates of a rank, one for each dimension.
  [[nodiscard]] std::vector<int> place_of(int rank) const;
  /// The rank at these coordinates.
  [[nodiscard]] int rank_at(const std::vector<int>& place) const;
  /// The ranks that share all coordinates with `rank` but that of this dimension, in the order of
  /// that coordinate. `rank` is one of them.
  [[nodiscard]] std::vector<int> group_of(std::string_view dimension, int rank) const;

 private:
  [[nodiscard]] std::size_t index_of(std::string_view dimension) const;

  std::vector<Dimension> dimensions_;
  int size_ = 1;
};

}  // namespace fl::site
