// SPDX-License-Identifier: Apache-2.0
// Sums by each topology of the table.
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/links.hpp"
#include "client/site/rank/topology_hooks.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <atomic>
#include <mutex>
#include <string_view>
#include <utility>

namespace fl::test {

using namespace fl::site;
namespace {

Topology named(std::string_view name) { return parse_topology(name).value(); }

}  // namespace

TEST_CASE("each topology sums, with the same bits on all ranks, at odd sizes too") {
  const std::vector<Nodes> layouts = {{{0, 0}},       {{0, 1}},         {{0, 0, 1}},
                                      {{0, 1, 2}},    {{0, 0, 1, 1}},   {{0, 1, 0, 1}},
                                      {{0, 0, 0, 1}}, {{0, 0, 1, 1, 2}}};
  for (const Nodes& nodes : layouts) {
    const auto size = static_cast<int>(nodes.node.size());
    CAPTURE(size);
    std::mutex mutex;
    std::vector<std::vector<torch::Tensor>> found(static_cast<std::size_t>(size));
    on_ranks(size, [&](Ranks& ranks) {
      for (const Topology& topology : topologies()) {
        for (const std::int64_t length : {0, 1, 3, 7, 1001, 70'001}) {
          torch::Tensor values = made_up_values(length, 1, ranks.rank(), 0);
          sum_by(topology, values, nodes, ranks);
          found[static_cast<std::size_t>(ranks.rank())].push_back(values);
        }
      }
    });
    std::size_t i = 0;
    for (const Topology& topology : topologies()) {
      const std::string name(topology.name);
      CAPTURE(name);
      for (const std::int64_t length : {0, 1, 3, 7, 1001, 70'001}) {
        CAPTURE(length);
        torch::Tensor sum = torch::zeros({length});
        for (int rank = 0; rank < size; ++rank) sum += made_up_values(length, 1, rank, 0);
        // Multiples of 1/512 are added without rounding, so every order gives the same.
        for (const auto& of_rank : found) CHECK(of_rank[i].equal(sum));
        ++i;
      }
    }
  }
}

TEST_CASE("long values go in several chunks, again and again") {
  for (const Nodes& nodes : {Nodes{{0, 1}}, Nodes{{0, 0, 1, 1}}}) {
    const auto size = static_cast<int>(nodes.node.size());
    CAPTURE(size);
    const std::int64_t length = 2'100'001;
    CHECK(pipeline_chunks(length / size) > 1);
    std::atomic<int> right = 0;
    on_ranks(size, [&](Ranks& ranks) {
      const torch::Tensor place = torch::arange(length, torch::kFloat32).remainder(1009);
      for (const Topology& topology : topologies()) {
        for (int again = 1; again <= 2; ++again) {
          torch::Tensor values = place * again + ranks.rank();
          sum_by(topology, values, nodes, ranks);
          right += values.equal(place * (again * size) + size * (size - 1) / 2);
        }
      }
    });
    CHECK(std::cmp_equal(right.load(), 2 * size * topologies().size()));
  }
}

TEST_CASE("alltoall and pipelined add in rank order, and every topology gives all ranks the same") {
  constexpr int size = 5;
  const Nodes nodes{{0, 0, 1, 1, 1}};
  const auto rounded = [](int rank) { return torch::sin(made_up_values(1003, 2, rank, 0)) * 1e3; };
  torch::Tensor in_order = rounded(0);
  for (int rank = 1; rank < size; ++rank) in_order += rounded(rank);
  for (const Topology& topology : topologies()) {
    CAPTURE(topology.name);
    std::vector<torch::Tensor> found(size);
    on_ranks(size, [&](Ranks& ranks) {
      torch::Tensor values = rounded(ranks.rank());
      sum_by(topology, values, nodes, ranks);
      found[static_cast<std::size_t>(ranks.rank())] = values;
    });
    for (const torch::Tensor& values : found) CHECK(values.equal(found[0]));
    if (topology == named("alltoall") || topology == named("pipelined"))
      CHECK(found[0].equal(in_order));
  }
}

TEST_CASE("topologies send what their headers say") {
  constexpr std::int64_t length = 60'000;
  const Nodes nodes{{0, 0, 1, 1}};
  for (const Topology& topology : topologies()) {
    CAPTURE(topology.name);
    std::atomic<std::uint64_t> bytes = 0;
    on_ranks(4, [&](Ranks& ranks) {
      torch::Tensor values = made_up_values(length, 1, ranks.rank(), 0);
      sum_by(topology, values, nodes, ranks);
      bytes += ranks.bytes_sent();
    });
    CHECK(bytes == 2 * 3 * 4 * length);  // Each of them sends 2 (W - 1) n bytes in all.
  }
}

TEST_CASE("ranks of one host share a node") {
  std::atomic<int> right = 0;
  on_ranks(4, [&](Ranks& ranks) {
    const std::string host = ranks.rank() % 2 == 0 ? "tall" : std::string(200, 'x');
    const Nodes nodes = find_nodes(host, ranks);
    right += nodes.node == std::vector<int>{0, 1, 0, 1};
    right += nodes.count() == 2 && nodes.is_even();
    right += nodes.ranks_of(1) == std::vector<int>{1, 3};
    right += leaders_of(nodes) == std::vector<int>{0, 1};
  });
  CHECK(right == 16);
  CHECK_FALSE(Nodes{{0, 0, 1}}.is_even());
  CHECK_FALSE(Nodes{{0, 0, 0}}.is_even());
  CHECK_FALSE(Nodes{{0, 1, 2}}.is_even());
}

TEST_CASE("between nodes a hook compresses, inside of them nothing is lost") {
  const Nodes nodes{{0, 0, 1}};
  std::vector<torch::Tensor> found(3);
  std::vector<torch::Tensor> kept(3);
  on_ranks(3, [&](Ranks& ranks) {
    const auto hook = make_between_nodes(std::move(parse_hook("topk:0.1")->hook), nodes);
    Bucket bucket = made_up_bucket(bucket_shapes(), 0, 0, ranks.rank());
    hook->reduce(bucket, ranks);
    const auto place = static_cast<std::size_t>(ranks.rank());
    found[place] = bucket.gradient;
    kept[place] = torch::zeros({1});
    for (const auto& [name, values] : hook->save())
      if (name.starts_with("residual/")) kept[place] += values.sum();
  });
  torch::Tensor mean;
  for (int rank = 0; rank < 3; ++rank) {
    const torch::Tensor values = made_up_bucket(bucket_shapes(), 0, 0, rank).gradient / 3;
    mean = rank == 0 ? values : mean + values;
    CHECK(found[static_cast<std::size_t>(rank)].equal(found[0]));
  }
  const std::int64_t sent = found[0].count_nonzero().item<std::int64_t>();
  CHECK(sent >= 40);
  CHECK(sent <= 80);
  CHECK(kept[1].item<float>() == 0);  // Only leaders keep something.
  const float missing = (mean - found[0]).sum().item<float>();
  CHECK(missing == doctest::Approx((kept[0] + kept[2]).item<float>() / 2).epsilon(1e-3));

  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    const auto hook = make_between_nodes(std::move(parse_hook("topk:0.1")->hook), {{0, 0, 0}});
    Bucket bucket = made_up_bucket(bucket_shapes(), 0, 0, ranks.rank());
    hook->reduce(bucket, ranks);
    right += torch::allclose(bucket.gradient, mean, 1e-5, 1e-6);
    const auto plain = make_topology_mean(named("tree"), {{0, 0, 0}});
    Bucket again = made_up_bucket(bucket_shapes(), 0, 0, ranks.rank());
    plain->reduce(again, ranks);
    right += torch::allclose(again.gradient, mean, 1e-5, 1e-6);
  });
  CHECK(right == 6);
}

TEST_CASE("between nodes error feedback loses nothing over several steps") {
  const Nodes nodes{{0, 0, 1}};
  constexpr int steps = 4;
  constexpr std::int64_t length = 20'000;  // Codecs send small tensors as they are.
  for (const std::string spec : {"topk:0.1", "codec:ecuq:2+ef", "codec:topk:0.1+qsgd:4+ef"}) {
    CAPTURE(spec);
    std::vector<torch::Tensor> found(3);  // The sums over the steps.
    std::vector<torch::Tensor> kept(3);
    on_ranks(3, [&](Ranks& ranks) {
      const auto place = static_cast<std::size_t>(ranks.rank());
      const auto hook = make_between_nodes(std::move(parse_hook(spec)->hook), nodes);
      const std::vector<Shapes> shape = {{{0, {200, 100}}}};
      found[place] = torch::zeros({length});
      for (int step = 0; step < steps; ++step) {
        Bucket bucket = made_up_bucket(shape, 0, step, ranks.rank());
        hook->reduce(bucket, ranks);
        found[place] += bucket.gradient;
      }
      kept[place] = torch::zeros({length});
      for (const auto& [name, values] : hook->save())
        if (name.starts_with("residual/")) kept[place] += values.flatten();
    });
    torch::Tensor mean = torch::zeros({length});
    for (int step = 0; step < steps; ++step)
      for (int rank = 0; rank < 3; ++rank) mean += made_up_values(length, step, rank, 0) / 3;
    CHECK(found[1].equal(found[0]));
    CHECK(found[2].equal(found[0]));
    CHECK(kept[1].count_nonzero().item<std::int64_t>() == 0);  // Only leaders keep something.
    CHECK((mean - found[0]).norm().item<double>() > 0.01 * mean.norm().item<double>());
    CHECK(torch::allclose(found[0] + (kept[0] + kept[2]) / 2, mean, 1e-4, 1e-4));
  }
}

TEST_CASE("links are measured, and are the same numbers on all ranks") {
  std::vector<Links> found(3);
  on_ranks(3, [&](Ranks& ranks) {
    found[static_cast<std::size_t>(ranks.rank())] = measure_links(ranks, 1 << 16, 1);
  });
  for (const Links& links : found) {
    CHECK(links.latency_s == found[0].latency_s);
    CHECK(links.bytes_per_s == found[0].bytes_per_s);
    for (std::size_t from = 0; from < 3; ++from) {
      for (std::size_t to = 0; to < 3; ++to) {
        CHECK((links.latency_s.at(from).at(to) > 0) == (from != to));
        CHECK((links.bytes_per_s.at(from).at(to) > 0) == (from != to));
      }
    }
  }
}

TEST_CASE("each step of a ring is told by itself, with its bytes") {
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    std::vector<std::uint64_t> told;
    ranks.observe([&told](const Ranks::Call& call) { told.push_back(call.bytes); });
    torch::Tensor values = torch::ones({300});
    sum_by(named("ring"), values, {{0, 0, 0}}, ranks);
    right += told == std::vector<std::uint64_t>(4, 400);
  });
  CHECK(right == 3);
}

}  // namespace fl::test
