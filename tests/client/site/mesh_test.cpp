// SPDX-License-Identifier: Apache-2.0
// Ranks in a mesh: places, and the groups of each dimension.
#include "client/site/mesh.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;

namespace {

using Ints = std::vector<int>;

}  // namespace

TEST_CASE("in one dimension all ranks are one group, in their order") {
  const Mesh mesh({{"dp", 5}});
  CHECK(mesh.size() == 5);
  for (int rank = 0; rank < 5; ++rank) {
    CHECK(mesh.place_of(rank) == Ints{rank});
    CHECK(mesh.rank_at({rank}) == rank);
    CHECK(mesh.group_of("dp", rank) == Ints{0, 1, 2, 3, 4});
  }
}

TEST_CASE("the last dimension is of neighbours") {
  const Mesh mesh({{"dp", 2}, {"tp", 3}});
  CHECK(mesh.size() == 6);
  CHECK(mesh.place_of(4) == Ints{1, 1});
  CHECK(mesh.group_of("tp", 4) == Ints{3, 4, 5});
  CHECK(mesh.group_of("dp", 4) == Ints{1, 4});
}

TEST_CASE("each dimension's groups hold every rank once, and differ in one coordinate") {
  const std::vector<std::vector<Mesh::Dimension>> grids = {
      {{"dp", 1}},
      {{"dp", 3}, {"tp", 1}, {"pp", 2}},
      {{"pp", 2}, {"dp", 3}, {"cp", 2}, {"tp", 4}},
  };
  for (const auto& grid : grids) {
    const Mesh mesh(grid);
    for (int rank = 0; rank < mesh.size(); ++rank)
      REQUIRE(mesh.rank_at(mesh.place_of(rank)) == rank);
    for (std::size_t index = 0; index < grid.size(); ++index) {
      CAPTURE(grid[index].name);
      std::set<Ints> groups;
      std::multiset<int> members;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        const Ints group = mesh.group_of(grid[index].name, rank);
        REQUIRE(static_cast<int>(group.size()) == grid[index].size);
        REQUIRE(std::ranges::is_sorted(group));
        const Ints own = mesh.place_of(rank);
        REQUIRE(group[static_cast<std::size_t>(own[index])] == rank);
        for (const int other : group) {
          Ints place = mesh.place_of(other);
          place[index] = own[index];
          REQUIRE(place == own);
        }
        if (groups.insert(group).second) members.insert(group.begin(), group.end());
      }
      CHECK(static_cast<int>(members.size()) == mesh.size());
      CHECK(std::set(members.begin(), members.end()).size() == members.size());
    }
  }
}

}  // namespace fl::test
