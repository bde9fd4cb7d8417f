// SPDX-License-Identifier: Apache-2.0
// The size of the pieces in which gradients are reduced: how it is chosen, and where it changes no
// bit of what ranks train.
#include "client/site/rank/bucket_size.hpp"
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <atomic>
#include <mutex>
#include <set>
#include <string>

namespace fl::test {

using namespace fl::site;

TEST_CASE("--bucket-mb is a size, auto or nothing") {
  CHECK(parse_bucket_mb("")->mb == 0);
  CHECK_FALSE(parse_bucket_mb("")->is_measured);
  CHECK(parse_bucket_mb("auto")->is_measured);
  CHECK(parse_bucket_mb("2.5")->mb == 2.5);
  for (const char* const wrong : {"0", "-1", "5000", "4MB", "Auto", " "})
    CHECK(parse_bucket_mb(wrong).error().message().find("auto") != std::string::npos);
}

TEST_CASE("the best size is the root of the model's bytes, the latency and the bandwidth") {
  constexpr std::size_t mib = 1 << 20;
  // sqrt(32 MiB * 0.3 ms * 1 GB/s) = 3.2 MB.
  CHECK(best_bucket_bytes(32 * mib, {.latency_s = 3e-4, .s_per_byte = 1e-9}) == 4 * mib);
  // 400 Mbit/s: 0.7 MB.
  CHECK(best_bucket_bytes(32 * mib, {.latency_s = 3e-4, .s_per_byte = 2e-8}) == mib / 2);
  // A slow start and a fast link: pieces of any size would be too small.
  CHECK(best_bucket_bytes(1024 * mib, {.latency_s = 1e-2, .s_per_byte = 1e-10}) == 32 * mib);
  CHECK(best_bucket_bytes(mib, {.latency_s = 1e-6, .s_per_byte = 1e-8}) == mib / 2);
}

TEST_CASE("all ranks measure the same cost of a sum") {
  for (const int size : {2, 3}) {
    for (const Topology& topology : {backend_topology(), parse_topology("alltoall").value()}) {
      std::mutex mutex;
      std::set<std::pair<double, double>> found;
      on_ranks(size, [&](Ranks& ranks) {
        const SumCost cost = measure_sum(
            topology, Nodes{std::vector<int>(static_cast<std::size_t>(ranks.size()))}, ranks);
        const std::lock_guard lock(mutex);
        found.emplace(cost.latency_s, cost.s_per_byte);
      });
      REQUIRE(found.size() == 1);
      CHECK(found.begin()->first > 0);
      CHECK(found.begin()->first < 1);
      CHECK(found.begin()->second > 1e-13);
      CHECK(found.begin()->second < 1e-6);
    }
  }
}

TEST_CASE("a size that was measured is taken by every later group that it was measured for") {
  const BucketPlan plan = {.bucket_mb = "auto",
                           .hook = "topk:0.1",
                           .topology = backend_topology(),
                           .model_bytes = 8 << 20};
  std::mutex mutex;
  std::set<MeasuredChoices> kept;
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    std::atomic<int> calls = 0;
    ranks.observe([&calls](const Ranks::Call&) { ++calls; });
    const Nodes nodes{{0, 0, 0}};
    MeasuredChoices choices = {{"other", "1"}};
    const auto size = [&](const BucketPlan& asked) {
      calls = 0;
      return choose_bucket_bytes(asked, nodes, choices, ranks).value();
    };
    const std::size_t measured = size(plan);
    right += calls > 0 && choices.size() == 2;
    // As if it had been another size.
    for (auto& [key, value] : choices)
      if (key != "other") value = "777";
    right += size(plan) == 777 && calls == 0;
    right += measured != 777;
    // Another model, hook or topology is measured, and its size is kept beside the first one.
    std::size_t entries = choices.size();
    for (BucketPlan other : {BucketPlan(plan), BucketPlan(plan), BucketPlan(plan)}) {
      if (entries == 2) other.model_bytes = 9 << 20;
      if (entries == 3) other.hook = "sign";
      if (entries == 4) other.topology = parse_topology("tree").value();
      right += size(other) != 777 && calls > 0;
      right += choices.size() == ++entries;
    }
    const auto two = ranks.rank() < 2 ? ranks.subgroup({0, 1}, "two") : nullptr;
    if (two) right += choose_bucket_bytes(plan, nodes, choices, *two).value() != 777;
    if (!two) right += 1;
    // Without being asked nothing is measured where it changes bits, and nothing that is kept
    // counts.
    BucketPlan silent = plan;
    silent.bucket_mb = "";
    right += size(silent) == bucket_bytes_otherwise && calls == 0;
    silent.bucket_mb = "2";
    right += size(silent) == 2 << 20 && calls == 0;
    for (auto& [key, value] : choices) value = "-";
    const auto refused = choose_bucket_bytes(plan, nodes, choices, ranks);
    right += !refused && refused.error().code() == Errc::corrupt;
    const std::lock_guard lock(mutex);
    kept.insert(choices);
  });
  CHECK(right == 3 * 13);
  CHECK(kept.size() == 2);  // Two ranks have an entry of their group, too.
}

TEST_CASE("where the size is chosen by a measurement without being asked, it changes no bit") {
  struct Case {
    int size;
    std::string hook;
    Topology topology;
  };
  for (const Case& one : {Case{2, "allreduce", backend_topology()},
                          {2, "bf16", backend_topology()},
                          {2, "allreduce", parse_topology("alltoall").value()},
                          {3, "allreduce", parse_topology("alltoall").value()},
                          {4, "allreduce", parse_topology("alltoall").value()}}) {
    CAPTURE(one.size);
    CAPTURE(one.hook);
    CAPTURE(one.topology.name);
    REQUIRE(is_free_of_bucket_size(one.topology, one.size));
    Training training;
    training.hook = one.hook;
    training.topology = one.topology;
    const auto whole = train_ranks(one.size, training);
    for (const std::size_t bytes : {4UL << 10, 64UL << 10}) {
      training.bucket_bytes = bytes;
      const auto pieces = train_ranks(one.size, training);
      CHECK(pieces[0].buckets > whole[0].buckets);
      for (const Trained& rank : pieces) CHECK(rank.update == whole[0].update);
    }
  }
  for (const Topology& topology :
       {backend_topology(), parse_topology("ring").value(), parse_topology("hybrid").value()})
    CHECK_FALSE(is_free_of_bucket_size(topology, 3));
}

}  // namespace fl::test
