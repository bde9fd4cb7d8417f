// SPDX-License-Identifier: Apache-2.0
// The size of the pieces in which gradients are reduced: how it is chosen, and where it changes no
// bit of what ranks train.
#include "client/site/rank/bucket_size.hpp"
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <mutex>
#include <set>
#include <string>

namespace fl::test {

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
    for (const Topology topology : {Topology::backend, Topology::alltoall}) {
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

TEST_CASE("where the size is chosen by a measurement without being asked, it changes no bit") {
  struct Case {
    int size;
    std::string hook;
    Topology topology;
  };
  for (const Case& one : {Case{2, "allreduce", Topology::backend},
                          {2, "bf16", Topology::backend},
                          {2, "allreduce", Topology::alltoall},
                          {3, "allreduce", Topology::alltoall},
                          {4, "allreduce", Topology::alltoall}}) {
    CAPTURE(one.size);
    CAPTURE(one.hook);
    CAPTURE(to_string(one.topology));
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
  for (const Topology topology : {Topology::backend, Topology::ring, Topology::hybrid})
    CHECK_FALSE(is_free_of_bucket_size(topology, 3));
}

}  // namespace fl::test
