// SPDX-License-Identifier: Apache-2.0
// Small sums through memory: the bits of Gloo's, ranks that end or leave, and ranks that can't
// share memory. This program computes nothing with libtorch outside of its children.
#include "tests/client/site/rank_processes.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <csignal>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace fl::test {
namespace {

RankOptions near(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  RankOptions options = loopback(timeout);
  options.shares_memory = true;
  return options;
}

torch::Tensor values_of(int rank, std::int64_t length, torch::ScalarType type) {
  const torch::Tensor values =
      torch::sin(torch::arange(length, torch::kFloat64) * (rank + 1.5)) * 1000;
  return values.to(type);
}

/// Sums of many types and lengths, as text of their bytes' digest.
std::vector<float> many_sums(Ranks& ranks) {
  std::vector<float> numbers;
  for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16,
                          torch::kInt64, torch::kInt32, torch::kUInt8}) {
    for (const std::int64_t length : {1, 7, 512, 4099, 65'536, 65'537, 300'000}) {
      torch::Tensor values = values_of(ranks.rank(), length, type);
      if (type == torch::kUInt8) values = values_of(ranks.rank(), length, torch::kInt32).to(type);
      ranks.sum(values);
      const torch::Tensor bytes = values.view(torch::kUInt8).to(torch::kInt64);
      const torch::Tensor place = torch::arange(bytes.numel(), torch::kInt64).remainder(8191);
      numbers.push_back(
          static_cast<float>(((bytes + 1) * place).sum().item<std::int64_t>() % 8'388'593));
    }
  }
  return numbers;
}

}  // namespace

TEST_CASE("sums through memory have the bits of sums through Gloo") {
  for (const int size : {2, 3, 4}) {
    CAPTURE(size);
    const RankProcesses far(size,
                            [](Ranks& ranks, const Ranks::Store&) { return many_sums(ranks); });
    const RankProcesses shared(
        size, [](Ranks& ranks, const Ranks::Store&) { return many_sums(ranks); }, near());
    const std::vector<float> expected = far.told(0);
    REQUIRE(expected.size() == 49);
    for (int rank = 0; rank < size; ++rank) CHECK(shared.told(rank) == expected);
  }
}

TEST_CASE("a rank that is ahead does not write over what another one still reads") {
  const RankProcesses processes(
      2,
      [](Ranks& ranks, const Ranks::Store&) {
        float wrong = 0;
        for (int turn = 0; turn < 3000; ++turn) {
          torch::Tensor values = torch::full({65'536}, static_cast<float>(turn + ranks.rank()));
          ranks.sum(values);
          wrong += values.eq(2.0F * static_cast<float>(turn) + 1.0F).all().item<bool>() ? 0.F : 1.F;
        }
        return std::vector<float>{wrong};
      },
      near());
  for (const int rank : {0, 1}) CHECK(processes.told(rank) == std::vector<float>{0});
}

TEST_CASE("a small sum sends nothing through sockets") {
  const RankProcesses processes(
      2,
      [](Ranks& ranks, const Ranks::Store&) {
        torch::Tensor values = torch::ones({1000});
        ranks.sum(values);
        const std::uint64_t before = socket_bytes();
        for (int i = 0; i < 100; ++i) ranks.sum(values);
        const auto passed = socket_bytes() - before;
        return std::vector<float>{static_cast<float>(passed), values[0].item<float>()};
      },
      near());
  for (const int rank : {0, 1}) {
    const std::vector<float> told = processes.told(rank);
    REQUIRE(told.size() == 2);
    CHECK(told[0] < 100);
    CHECK(told[1] == 0x1p101F);
  }
}

TEST_CASE("a rank that ends, stops or leaves fails the small sums of the others") {
  enum class End { killed, stopped, leaves };
  for (const End end : {End::killed, End::stopped, End::leaves}) {
    CAPTURE(static_cast<int>(end));
    const RankProcesses processes(
        3,
        [end](Ranks& ranks, const Ranks::Store& store) {
          auto group = ranks.subgroup({0, 1, 2}, "group");
          (void)group->sum(1);
          if (ranks.rank() == 1) {
            if (end == End::killed) ::raise(SIGKILL);
            if (end == End::stopped) ::raise(SIGSTOP);
            group.reset();
            return std::vector<float>{};
          }
          const auto begin = std::chrono::steady_clock::now();
          const auto other = make_gloo_ranks(c10::make_intrusive<c10d::PrefixStore>("two", store),
                                             ranks.rank() / 2, 2, near());
          try {
            (void)group->sum(1);
          } catch (const RankFailure& failure) {
            const std::chrono::duration<float> passed = std::chrono::steady_clock::now() - begin;
            const bool is_named = std::string(failure.what()).find("rank 1") != std::string::npos;
            return std::vector<float>{passed.count(), is_named ? 1.0F : 0.0F,
                                      static_cast<float>(other->sum(5))};
          }
          return std::vector<float>{};
        },
        near(std::chrono::milliseconds(1500)));
    for (const int rank : {0, 2}) {
      const std::vector<float> told = processes.told(rank);
      REQUIRE(told.size() == 3);
      CHECK(told[0] < (end == End::killed ? 1.0F : 4.0F));
      CHECK(told[1] == 1);
      CHECK(told[2] == 10);
    }
  }
}

}  // namespace fl::test
