// SPDX-License-Identifier: Apache-2.0
// The grid of a site's ranks, and what it refuses.
#include "client/site/grid.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::site;

TEST_CASE("a grid has as many ranks as its axes say, and all where they say nothing") {
  CHECK(fill_grid(parse_grid("dp=4").value(), 4)->dp == 4);
  CHECK(fill_grid(parse_grid("dp=2,tp=1").value(), 2)->dp == 2);
  CHECK(fill_grid(parse_grid("tp=1").value(), 3)->dp == 3);
  CHECK(fill_grid(parse_grid("tp=2").value(), 6)->dp == 3);
  CHECK(fill_grid(parse_grid("dp=3,tp=2").value(), 6)->tp == 2);
  CHECK(fill_grid(grid_of({.ranks = 3}).value(), 3)->dp == 3);
  const auto wrong = fill_grid(parse_grid("dp=4").value(), 3);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message() == "--parallel dp=4 takes 4 ranks, and the site has 3");
  const auto product = fill_grid(parse_grid("dp=2,tp=2").value(), 3);
  REQUIRE_FALSE(product);
  CHECK(product.error().message() == "--parallel dp=2,tp=2 takes 4 ranks, and the site has 3");
  const auto odd = fill_grid(parse_grid("tp=2").value(), 3);
  REQUIRE_FALSE(odd);
  CHECK(odd.error().message() == "--parallel tp=2 takes a multiple of 2 ranks, and the site has 3");
  CHECK(fill_grid(parse_grid("cp=2").value(), 6)->dp == 3);
  CHECK(fill_grid(parse_grid("cp=2,dp=3").value(), 6)->cp == 2);
  CHECK(fill_grid(parse_grid("cp=2,tp=3").value(), 4).error().message() ==
        "--parallel tp=3,cp=2 takes a multiple of 6 ranks, and the site has 4");
  CHECK(fill_grid(parse_grid("dp=1,cp=2").value(), 4).error().message() ==
        "--parallel dp=1,cp=2 takes 2 ranks, and the site has 4");
  CHECK(fill_grid(parse_grid("pp=2").value(), 6)->dp == 3);
  // Their product is more than an int holds.
  const Grid largest = parse_grid("tp=4096,cp=4096,pp=4096").value();
  CHECK(largest.together() == std::int64_t{1} << 36);
  CHECK(fill_grid(largest, 8).error().message() ==
        "--parallel tp=4096,cp=4096,pp=4096 takes a multiple of 68719476736 ranks, and the site "
        "has 8");
  CHECK(usable_ranks(largest, 8) == 0);
  CHECK(fill_grid(parse_grid("pp=2,tp=2").value(), 6).error().message() ==
        "--parallel tp=2,pp=2 takes a multiple of 4 ranks, and the site has 6");
  CHECK(fill_grid(parse_grid("ep=2").value(), 4)->dp == 4);
  CHECK(fill_grid(parse_grid("ep=4,cp=2,tp=2").value(), 8)->dp == 2);
  CHECK(fill_grid(parse_grid("ep=2,cp=3").value(), 4).error().message() ==
        "--parallel cp=3,ep=2 takes a multiple of 6 ranks, and the site has 4");
  CHECK(fill_grid(parse_grid("dp=3,cp=2,ep=4").value(), 6).error().message() ==
        "--parallel dp=3,cp=2,ep=4: ep divides the experts over the ranks of dp and cp, which are "
        "6, no multiple of 4");
}

TEST_CASE("ranks of tp follow each other, and those of pp are farthest apart") {
  const Mesh mesh = mesh_of({.dp = 2, .tp = 2, .cp = 2, .pp = 2});
  CHECK(mesh.size() == 16);
  CHECK(mesh.group_of("tp", 0) == std::vector{0, 1});
  CHECK(mesh.group_of("cp", 0) == std::vector{0, 2});
  CHECK(mesh.group_of("dp", 0) == std::vector{0, 4});
  CHECK(mesh.group_of("pp", 3) == std::vector{3, 11});
}

TEST_CASE("groups of ep are of ranks of dp and cp that follow each other, and stay in a stage") {
  const Mesh mesh = experts_mesh_of({.dp = 4, .tp = 2, .cp = 1, .ep = 2, .pp = 2});
  CHECK(mesh.size() == 16);
  CHECK(mesh.group_of("ep", 0) == std::vector{0, 2});
  CHECK(mesh.group_of("ep", 7) == std::vector{5, 7});
  CHECK(mesh.group_of("replicas", 7) == std::vector{3, 7});
  CHECK(mesh.group_of("replicas", 9) == std::vector{9, 13});
  CHECK(experts_mesh_of({.dp = 1, .cp = 4, .ep = 4}).group_of("ep", 2) == std::vector{0, 1, 2, 3});
}

TEST_CASE("when ranks are lost a group has all parts of the layers") {
  const Grid grid = parse_grid("tp=4").value();
  for (const auto& [there, used] : {std::pair(8, 8), {7, 4}, {4, 4}, {3, 0}})
    CHECK(usable_ranks(grid, static_cast<std::size_t>(there)) == static_cast<std::size_t>(used));
  CHECK(usable_ranks(Grid(), 7) == 7);
  const Grid both = parse_grid("tp=2,cp=3").value();
  CHECK(both.together() == 6);
  CHECK(usable_ranks(both, 11) == 6);
  CHECK(usable_ranks(parse_grid("tp=2,pp=2").value(), 7) == 4);
  CHECK(usable_ranks(parse_grid("ep=4").value(), 7) == 4);
  const Grid texts_and_experts = parse_grid("cp=4,ep=6,tp=2").value();
  CHECK(texts_and_experts.together() == 24);
  CHECK(texts_and_experts.for_part() == 8);
}

TEST_CASE("what is no grid is refused with the reason") {
  for (const auto& row : {
           std::pair("", "'' is no axis; there are dp, tp, cp, ep and pp"),
           std::pair("data=2", "'data' is no axis"),
           std::pair("dp", "dp needs a number of ranks, from 1 to"),
           std::pair("dp=0", "dp needs a number of ranks"),
           std::pair("dp=two", "dp needs a number of ranks"),
           std::pair("dp=5000", "dp needs a number of ranks"),
           std::pair("dp=2,dp=2", "dp stands there twice"),
           std::pair("dp=2,", "'' is no axis"),
           std::pair("tp=2,tp=2", "tp stands there twice"),
           std::pair("tp=1,tp=1", "tp stands there twice"),
           std::pair("cp=2,cp=2", "cp stands there twice"),
           std::pair("pp=2,pp=2", "pp stands there twice"),
           std::pair("ep=2,ep=2", "ep stands there twice"),
       }) {
    const std::string text = row.first;
    CAPTURE(text);
    const auto grid = parse_grid(text);
    REQUIRE_FALSE(grid);
    CHECK(grid.error().message().find(row.second) != std::string::npos);
    CHECK(grid.error().message().starts_with("--parallel '" + text + "': "));
  }
}

}  // namespace fl::test
