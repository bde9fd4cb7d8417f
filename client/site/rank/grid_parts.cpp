// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/grid_parts.hpp"

#include <numeric>

namespace fl::site {

LayersPlace GridParts::place_of(std::int64_t rank) const {
  return {.tensor = rank % layers_.tensors.ranks,
          .pipeline = rank / stage_size(),
          .expert = sharer_of(rank) % layers_.experts.ranks};
}

LayersPart GridParts::part_of(std::int64_t rank) const {
  return part_of_model(layout_, layers_, place_of(rank));
}

std::vector<std::size_t> GridParts::units_of(std::int64_t rank, std::size_t units) const {
  if (layers_.stages.ranks > 1)
    return units_on_rank(layers_.stages, place_of(rank).pipeline, blocks_of(layout_));
  std::vector<std::size_t> all(units);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::int64_t GridParts::sharer_of(std::int64_t rank) const {
  return rank % stage_size() / layers_.tensors.ranks;
}

std::vector<Piece> GridParts::in_model(std::int64_t rank, std::vector<Piece> held,
                                       std::vector<Piece> LayersPart::*which) const {
  if (!layers_.is_divided()) return held;
  return within(part_of(rank).*which, held);
}

}  // namespace fl::site
