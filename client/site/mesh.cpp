// SPDX-License-Identifier: Apache-2.0
#include "client/site/mesh.hpp"

#include "shared/base/error.hpp"

#include <algorithm>
#include <utility>

namespace fl::site {

Mesh::Mesh(std::vector<Dimension> dimensions) : dimensions_(std::move(dimensions)) {
  for (const Dimension& dimension : dimensions_) {
    FL_ASSERT(dimension.size >= 1);
    FL_ASSERT(std::ranges::count(dimensions_, dimension.name, &Dimension::name) == 1);
    const bool is_too_large = __builtin_mul_overflow(size_, dimension.size, &size_);
    FL_ASSERT(!is_too_large);
  }
}

std::vector<int> Mesh::place_of(int rank) const {
  FL_ASSERT(rank >= 0 && rank < size_);
  std::vector<int> place(dimensions_.size());
  for (std::size_t i = dimensions_.size(); i-- > 0;) {
    place[i] = rank % dimensions_[i].size;
    rank /= dimensions_[i].size;
  }
  return place;
}

int Mesh::rank_at(const std::vector<int>& place) const {
  FL_ASSERT(place.size() == dimensions_.size());
  int rank = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    FL_ASSERT(place[i] >= 0 && place[i] < dimensions_[i].size);
    rank = rank * dimensions_[i].size + place[i];
  }
  return rank;
}

std::size_t Mesh::index_of(std::string_view dimension) const {
  const auto found = std::ranges::find(dimensions_, dimension, &Dimension::name);
  FL_ASSERT(found != dimensions_.end());
  return static_cast<std::size_t>(found - dimensions_.begin());
}

std::vector<int> Mesh::group_of(std::string_view dimension, int rank) const {
  const std::size_t index = index_of(dimension);
  std::vector<int> place = place_of(rank);
  std::vector<int> ranks;
  for (int coordinate = 0; coordinate < dimensions_[index].size; ++coordinate) {
    place[index] = coordinate;
    ranks.push_back(rank_at(place));
  }
  return ranks;
}

}  // namespace fl::site
