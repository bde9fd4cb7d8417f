// SPDX-License-Identifier: Apache-2.0
#include "client/site/grid_doctor.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

using Verdict = DoctorLine::Verdict;

const std::string two_blocks = "transformer:layers=2,width=16,heads=4,context=32";

/// Ranks on these machines.
std::vector<RankFacts> ranks_on(const std::vector<std::string>& hosts) {
  std::vector<RankFacts> facts(hosts.size());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    facts[rank].rank = static_cast<int>(rank);
    facts[rank].host = hosts[rank];
    facts[rank].local_size = static_cast<int>(std::ranges::count(hosts, hosts[rank]));
  }
  return facts;
}

const std::vector<RankFacts> two_and_two = ranks_on({"a", "a", "b", "b"});

}  // namespace

TEST_CASE("the doctor has nothing to say about ranks that take passes by themselves") {
  CHECK(diagnose_grid({.grid = {.dp = 4}}, two_and_two).empty());
}

TEST_CASE("the doctor says whether a grid divides a model") {
  const auto line = [](const GridPlan& plan) { return diagnose_grid(plan, two_and_two).front(); };
  CHECK(line({.grid = {.dp = 2, .tp = 2}, .model = two_blocks}).verdict == Verdict::ok);
  CHECK(line({.grid = {.dp = 2, .tp = 2}, .model = two_blocks}).text ==
        "dp=2,tp=2,cp=1,ep=1,pp=1 divides " + two_blocks);
  CHECK(line({.grid = {.dp = 2, .tp = 2}}).verdict == Verdict::warn);
  const DoctorLine heads =
      line({.grid = {.dp = 1, .tp = 2, .cp = 2}, .model = two_blocks + ",vocab=257"});
  CHECK(heads.verdict == Verdict::fail);
  CHECK(heads.text.find("its vocabulary of 257 is no multiple of 2") != std::string::npos);
  const std::string odd = "transformer:layers=2,width=16,heads=4,context=6";
  CHECK(line({.grid = {.dp = 2, .tp = 1, .cp = 2}, .model = odd}).text.find("context of 6") !=
        std::string::npos);
  const GridPlan by_heads{
      .grid = {.dp = 2, .tp = 1, .cp = 2}, .way = ContextWay::ulysses, .model = odd};
  CHECK(line(by_heads).verdict == Verdict::ok);
  CHECK(line({.grid = {.dp = 2, .tp = 2}, .model = "nothing"}).verdict == Verdict::fail);
  const GridPlan four_stages{.grid = {.dp = 2, .pp = 2},
                             .stages = parse_pipeline("interleaved:2", 2).value(),
                             .model = two_blocks};
  CHECK(line(four_stages).text.find("its 2 layers are no multiple of 4") != std::string::npos);
}

TEST_CASE("the doctor tells where the ranks are that have some of the experts each") {
  const GridPlan pairs{.grid = {.dp = 4, .ep = 2}, .model = two_blocks + ",experts=4"};
  const DoctorLines near = diagnose_grid(pairs, two_and_two);
  REQUIRE(near.size() == 2);
  CHECK(near[0].verdict == Verdict::ok);
  CHECK(near[1].text == "each group of ep is on one machine");
  GridPlan wide = pairs;
  wide.grid.ep = 4;
  const DoctorLine far = diagnose_grid(wide, two_and_two).back();
  CHECK(far.text.find("--expert-parallel two-hops: in fewer messages") != std::string::npos);
  CHECK(far.text.ends_with("1 of 1, such as ranks 0 (a) to 3 (b)"));
  wide.model = two_blocks;
  CHECK(diagnose_grid(wide, two_and_two).front().text.find("it has no experts") !=
        std::string::npos);
}

TEST_CASE("the doctor names the slowest link of each axis, and warns of one of tp") {
  std::vector<std::vector<double>> links(4, std::vector<double>(4, 1e9));
  links[2][3] = 4e8;
  links[0][2] = 5e8;
  const GridPlan pairs{.grid = {.dp = 2, .tp = 2}, .model = two_blocks};
  const DoctorLine slow = diagnose_grid(pairs, two_and_two, links).back();
  CHECK(slow.text == "tp 400 MB/s, dp 500 MB/s (the slowest link of each)");
  CHECK(slow.verdict == Verdict::ok);
  links[0][2] = 1e9;
  CHECK(diagnose_grid(pairs, two_and_two, links).back().verdict == Verdict::warn);
  const GridPlan experts{.grid = {.dp = 4, .ep = 2}, .model = two_blocks + ",experts=4"};
  CHECK(diagnose_grid(experts, two_and_two, links).back().text ==
        "ep 400 MB/s, dp 400 MB/s (the slowest link of each)");
}

TEST_CASE("the doctor tells where the ranks of a pipeline are, and how long they wait") {
  const auto lines_for = [](const char* pipeline, const std::vector<RankFacts>& facts) {
    const GridPlan plan{.grid = {.dp = 2, .pp = 2}, .stages = parse_pipeline(pipeline, 2).value()};
    return diagnose_grid(plan, facts);
  };
  const DoctorLine far = lines_for("1f1b", two_and_two).back();
  CHECK(far.verdict == Verdict::ok);
  CHECK(far.text.find("pipelines go over several machines") != std::string::npos);
  CHECK(far.text.find("2 of 2, such as ranks 0 (a) to 2 (b)") != std::string::npos);
  CHECK(far.text.ends_with("ranks wait 1/M of the time that they compute"));
  const DoctorLine near = lines_for("zb-h1", ranks_on({"a", "a", "a", "a"})).back();
  CHECK(near.text.starts_with("each pipeline is on one machine"));
  CHECK(near.text.ends_with("ranks wait 1/(3 M) of the time that they compute"));
  CHECK(lines_for("interleaved:2", two_and_two).back().text.find("1/(2 M)") != std::string::npos);
}

TEST_CASE("the doctor warns where ranks that divide layers are on several machines") {
  const GridPlan pairs{.grid = {.dp = 2, .tp = 2}, .model = two_blocks};
  const DoctorLines good = diagnose_grid(pairs, two_and_two);
  REQUIRE(good.size() == 2);
  CHECK(good[1].verdict == Verdict::ok);
  const DoctorLines bad = diagnose_grid(pairs, ranks_on({"a", "b", "b", "c"}));
  REQUIRE(bad.size() == 2);
  CHECK(bad[1].verdict == Verdict::warn);
  CHECK(bad[1].text ==
        "groups of tp are on several machines: 2 of 2, such as ranks 0 (a) to 1 (b)");
  CHECK(
      bad[1].advice.find("a multiple of 2 ranks on each machine, or choose a tp that divides 1") !=
      std::string::npos);
}

TEST_CASE("the doctor tells where ranks that divide texts are") {
  const GridPlan both{.grid = {.dp = 1, .tp = 2, .cp = 2}, .model = two_blocks};
  const DoctorLines lines = diagnose_grid(both, two_and_two);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].text == "each group of tp is on one machine");
  CHECK(lines[2].verdict == Verdict::ok);
  CHECK(lines[2].text.ends_with("2 of 2, such as ranks 0 (a) to 2 (b)"));
  const DoctorLines near = diagnose_grid({.grid = {.dp = 2, .cp = 2}}, two_and_two);
  CHECK(near.back().text == "each group of cp is on one machine");
}

}  // namespace fl::test
