// SPDX-License-Identifier: Apache-2.0
// All transfers together stay within limits::bulk_bytes_max, whatever the order in which they came.
#include "server/round/bulk_budget.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr std::uint64_t large = 1 << 30;

TEST_CASE("uploads that come one after the other fill the budget and never exceed it") {
  BulkBudget budget;
  std::vector<std::size_t> chunks;
  std::size_t held = 0;
  while (budget.has_room()) {
    chunks.push_back(budget.chunk_bytes_max(large));
    budget.begin(chunks.back());
    held += limits::chunks_of_transfer * chunks.back();
    REQUIRE(held <= limits::bulk_bytes_max);
  }
  CHECK(chunks.front() == limits::chunk_bytes_max);
  CHECK(chunks.back() == limits::chunk_bytes_min);
  CHECK(chunks.size() > 100);
  CHECK(chunks[7] == limits::chunk_bytes_max);
  CHECK(budget.transfers() == static_cast<int>(chunks.size()));
  for (const std::size_t chunk : chunks) budget.end(chunk);
  CHECK(budget.chunk_bytes_max(large) == limits::chunk_bytes_max);
  CHECK(budget.has_room());
}

TEST_CASE("downloads beyond the budget have the smallest chunks") {
  BulkBudget budget;
  for (int i = 0; i < 1000; ++i) budget.begin(budget.chunk_bytes_max(large));
  CHECK(budget.chunk_bytes_max(large) == limits::chunk_bytes_min);
  CHECK(!budget.has_room());
}

TEST_CASE("small uploads take no more than they have") {
  BulkBudget budget;
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(budget.has_room());
    CHECK(budget.chunk_bytes_max(5000) == 5000);
    budget.begin(5000);
  }
}

}  // namespace
}  // namespace fl::test
