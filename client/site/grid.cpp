// SPDX-License-Identifier: Apache-2.0
#include "client/site/grid.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace fl::site {

namespace {

struct Axis {
  std::string_view name;
  int Grid::*size = nullptr;
};
constexpr Axis axes[] = {
    {"dp", &Grid::dp}, {"tp", &Grid::tp}, {"cp", &Grid::cp}, {"ep", &Grid::ep}, {"pp", &Grid::pp}};

const Axis* find_axis(std::string_view name) {
  for (const Axis& axis : axes)
    if (axis.name == name) return &axis;
  return nullptr;
}

}  // namespace

std::int64_t Grid::together() const {
  return std::int64_t{tp} * std::lcm(std::int64_t{cp}, std::int64_t{ep}) * pp;
}

Result<Grid> parse_grid(std::string_view text) {
  const auto refuse = [&](const std::string& why) {
    return Error(Errc::invalid_input, fmt::format("--parallel '{}': {}", text, why));
  };
  Grid grid;
  std::vector<std::string_view> seen;
  std::optional<std::string_view> rest = text;
  while (rest) {
    const auto [item, behind] = cut(*rest, ',');
    rest = behind;
    const auto [name, value] = cut(item, '=');
    const Axis* const axis = find_axis(name);
    if (axis == nullptr)
      return refuse(fmt::format("'{}' is no axis; there are dp, tp, cp, ep and pp", name));
    const auto size = number_in<int>(value.value_or(""));
    if (!size || *size < 1 || *size > limits::ranks_max)
      return refuse(
          fmt::format("{} needs a number of ranks, from 1 to {}", name, limits::ranks_max));
    if (std::ranges::find(seen, name) != seen.end())
      return refuse(fmt::format("{} stands there twice", name));
    seen.push_back(name);
    grid.*axis->size = *size;
  }
  return grid;
}

Result<Grid> fill_grid(Grid grid, int ranks) {
  std::string fixed;
  for (const Axis& axis : axes) {
    if (axis.size == &Grid::dp || grid.*axis.size == 1) continue;
    fixed += fmt::format(",{}={}", axis.name, grid.*axis.size);
  }
  const std::int64_t together = grid.together();
  if (grid.dp == 0) {
    if (ranks % together != 0)
      return Error(Errc::invalid_input,
                   fmt::format("--parallel {} takes a multiple of {} ranks, and the site has {}",
                               fixed.substr(1), together, ranks));
    grid.dp = static_cast<int>(ranks / grid.for_part());
  }
  const std::int64_t product = grid.dp * grid.for_part();
  if (product != ranks)
    return Error(Errc::invalid_input,
                 fmt::format("--parallel dp={}{} takes {} ranks, and the site has {}", grid.dp,
                             fixed, product, ranks));
  if (const std::int64_t sharers = std::int64_t{grid.dp} * grid.cp; sharers % grid.ep != 0)
    return Error(Errc::invalid_input,
                 fmt::format("--parallel dp={}{}: ep divides the experts over the ranks of dp and "
                             "cp, which are {}, no multiple of {}",
                             grid.dp, fixed, sharers, grid.ep));
  return grid;
}

Mesh mesh_of(const Grid& grid) {
  return Mesh({{"pp", grid.pp}, {"dp", grid.dp}, {"cp", grid.cp}, {"tp", grid.tp}});
}

Mesh experts_mesh_of(const Grid& grid) {
  return Mesh({{"pp", grid.pp},
               {"replicas", grid.dp * grid.cp / grid.ep},
               {"ep", grid.ep},
               {"tp", grid.tp}});
}

std::size_t usable_ranks(const Grid& grid, std::size_t ranks) {
  return ranks - ranks % static_cast<std::size_t>(grid.together());
}

}  // namespace fl::site
