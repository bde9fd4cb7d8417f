// SPDX-License-Identifier: Apache-2.0
// The table of topologies against itself, the flags and the guide, and the choice of one.
#include "client/site/topologies/topology_table.hpp"
#include "client/site/site_flags.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

/// All links alike, but slower between nodes.
Links links_of(const Nodes& nodes, double latency_s, double bytes_per_s, double latency_between_s,
               double bytes_per_s_between) {
  Links links;
  for (const int from : nodes.node) {
    auto& latencies = links.latency_s.emplace_back();
    auto& rates = links.bytes_per_s.emplace_back();
    for (const int to : nodes.node) {
      latencies.push_back(from == to ? latency_s : latency_between_s);
      rates.push_back(from == to ? bytes_per_s : bytes_per_s_between);
    }
  }
  return links;
}

Topology named(std::string_view name) { return parse_topology(name).value(); }

TEST_CASE("each topology has a name and a cost of its own, and is in errors, help and the guide") {
  CLI::App app;
  SiteOptions options;
  declare_site_flags(app, options);
  const std::string help = app.get_option("--topology")->get_description();
  const std::string refused = parse_topology("star").error().message();
  std::ifstream file(FL_SOURCE_FOLDER "/docs/guide/sites.md");
  const std::string guide(std::istreambuf_iterator<char>(file), {});
  const Nodes nodes{{0, 0, 1, 1}};
  const Links links = links_of(nodes, 1e-5, 1e9, 1e-4, 1e8);
  std::set<std::string_view> names;
  for (const Topology& row : topologies()) {
    const std::string name(row.name);
    CAPTURE(name);
    CHECK(names.insert(row.name).second);
    CHECK(named(name) == row);
    CHECK(estimated_s(row, 1 << 20, nodes, links) > 0);
    CHECK(estimated_s(row, 1 << 20, Nodes{{0}}, {}) == 0);
    CHECK(help.find(name) != std::string::npos);
    CHECK(refused.find(name + ", ") != std::string::npos);
    CHECK(guide.find(fmt::format("`{}`", name)) != std::string::npos);
  }
  CHECK(options.topology == backend_topology().name);
  CHECK(refused.ends_with(", auto"));
  CHECK(topology_for_hooks() == named("hierarchical"));
}

TEST_CASE("the choice follows size, latency and where the slow links are") {
  const Nodes one{{0, 0, 0, 0, 0, 0, 0, 0}};
  const Nodes two{{0, 0, 0, 0, 1, 1, 1, 1}};
  const Nodes uneven{{0, 0, 0, 0, 0, 0, 0, 1}};
  const Links alike = links_of(one, 50e-6, 1e9, 50e-6, 1e9);
  const Links slow_between = links_of(two, 5e-6, 50e9, 100e-6, 1e8);
  const Links slow_uneven = links_of(uneven, 5e-6, 50e9, 100e-6, 1e8);
  const std::int64_t small = 1000;
  const std::int64_t large = 100'000'000;

  // 2 (W - 1) (a + n / W b), by hand: 14 (50e-6 + 0.0125).
  CHECK(estimated_s(named("ring"), large, one, alike) == doctest::Approx(14 * (50e-6 + 0.0125)));
  CHECK(estimated_s(named("tree"), large, one, alike) == doctest::Approx(6 * (50e-6 + 0.1)));
  CHECK(estimated_s(named("alltoall"), small, one, alike) == doctest::Approx(2 * (50e-6 + 875e-9)));
  CHECK(estimated_s(named("ring"), large, Nodes{{0}}, {}) == 0);

  CHECK(choose_topology(small, one, alike) == named("alltoall"));
  // Latency counts little, and a ring's messages never share a way.
  const Topology for_large = choose_topology(large, one, alike);
  CHECK((for_large == named("alltoall") || for_large == named("backend")));
  const Topology between = choose_topology(large, two, slow_between);
  CHECK((between == named("hybrid") || between == named("hierarchical")));
  CHECK(choose_topology(large, uneven, slow_uneven) == named("hierarchical"));
}

}  // namespace
}  // namespace fl::test
