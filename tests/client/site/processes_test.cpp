// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, over Gloo and, where there is a GPU, over NCCL: every hook and topology
// against one rank, each rank's own bytes, steps that fall back to fp32, and ranks that are killed
// or stop. This program computes nothing with libtorch outside of its children.
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/topology_hooks.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_processes.hpp"  // libtorch before doctest: both have CHECK.
#include "tests/client/site/trained_ranks.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace fl::test {

using namespace fl::site;
namespace {

/// All hooks, with the largest relative error (of the norms) of a step that they may have.
const std::vector<std::pair<std::string, double>> hooks = {
    {"allreduce", 1e-6},
    {"fp16", 1e-3},
    {"bf16", 1e-2},
    {"powersgd:8,start=2,rate=0", 0.9},
    {"batched-powersgd:8,start=2", 0.9},
    {"quantize:8", 0.02},
    {"quantize:8,channel=64", 0.02},
    {"topk:0.5", 0.8},
    {"randk:0.5", 1.2},
    {"qsgd:8", 0.1},
    {"sign", 1.2},
    {"post-local-sgd:2,start=9", 1e-6},
    // Beside Adam on one rank. By the large epsilon small variances do not count for more.
    {"onebit-adam:9,epsilon=1", 1e-5},
    {"onebit-adam:2,epsilon=1", 1.2},
    {"codec:ecuq:8+ef", 0.05},
    {"fp16+allreduce", 1e-3},
    {"bf16+allreduce", 1e-2},
    {"fp16+powersgd:8,start=2,rate=0", 0.9},
    {"bf16+powersgd:8,start=2,rate=0", 0.9},
    {"fp16+batched-powersgd:8,start=2", 0.9},
    {"bf16+batched-powersgd:8,start=2", 0.9},
    {"fp16+topk:0.5", 0.8},
    {"bf16+topk:0.5", 0.8},
    {"fp16+randk:0.5", 1.2},
    {"bf16+randk:0.5", 1.2},
    {"fp16+post-local-sgd:2,start=9", 1e-3},
    {"bf16+post-local-sgd:2,start=9", 1e-2},
};

/// All topologies but that of the backend, which the hook allreduce has.
std::span<const Topology> topologies_here() { return topologies().subspan(1); }

/// The mean that one rank with all gradients has.
torch::Tensor mean_of(int size, std::int64_t step) {
  torch::Tensor mean;
  for (int rank = 0; rank < size; ++rank) {
    const torch::Tensor values = made_up_bucket(bucket_shapes(), 0, step, rank).gradient;
    mean = rank == 0 ? values : mean + values;
  }
  return mean / size;
}

/// How ranks talk.
struct Backend {
  const char* name;
  MakeRanks make;
  std::chrono::milliseconds shortest;  // A time in which a group is surely made.
};

std::vector<Backend> backends() {
  std::vector<Backend> all = {
      {.name = "gloo", .make = make_gloo_ranks, .shortest = std::chrono::milliseconds(1500)}};
  if (can_share_gpu())
    all.push_back({.name = "nccl", .make = share_gpu, .shortest = std::chrono::seconds(15)});
  return all;
}

bool is_listed(std::string_view spec) {
  return std::ranges::any_of(hooks, [spec](const auto& hook) {
    return hook.first.substr(0, hook.first.find(':')) == spec;
  });
}

/// For each hook and topology: the error of a step, and three numbers of its result.
std::vector<float> try_all(Ranks& ranks) {
  std::vector<float> numbers;
  const auto alone = ranks.subgroup({ranks.rank()}, fmt::format("alone {}", ranks.rank()));
  const auto tell = [&](GradientHook& hook, bool returns_step = false) {
    const auto adam = std::move(parse_hook("onebit-adam:9,epsilon=1").value().hook);
    torch::Tensor found;
    torch::Tensor expected;
    for (std::int64_t step = 0; step < 3; ++step) {
      Bucket bucket = made_up_bucket(bucket_shapes(), 0, step, ranks.rank());
      bucket.is_last = true;
      bucket.gradient = bucket.gradient.to(ranks.device());
      Bucket whole = bucket;
      whole.gradient = mean_of(ranks.size(), step).to(ranks.device());
      hook.reduce(bucket, ranks);
      if (returns_step) adam->reduce(whole, *alone);
      found = bucket.gradient.cpu();
      expected = whole.gradient.cpu();
    }
    const double error = (found - expected).norm().item<double>();
    numbers.push_back(static_cast<float>(error / expected.norm().item<double>()));
    for (const std::int64_t place : {0, 123, 399}) numbers.push_back(found[place].item<float>());
  };
  for (const auto& [spec, error_max] : hooks) {
    const auto parsed = parse_hook(spec);
    tell(*parsed.value().hook, parsed->row.returns_step);
  }
  Nodes nodes;
  for (int rank = 0; rank < ranks.size(); ++rank) nodes.node.push_back(rank / 2);
  for (const Topology& topology : topologies_here()) tell(*make_topology_mean(topology, nodes));
  return numbers;
}

/// Sums until a rank fails, as the rank `victim` does in its second sum by `signal`. Then the
/// others go on as a group of their own, with the same answer as a new site has. Returns the time
/// until the failure in seconds, the number of the failed sum, and the sum of the survivors' ranks.
std::vector<float> outlive(Ranks& ranks, const Ranks::Store& store, int victim, int signal,
                           const Backend& backend) {
  torch::Tensor values = torch::ones({500'000}, torch::TensorOptions(ranks.device()));
  ranks.sum(values);
  if (ranks.rank() == victim) ::raise(signal);
  const auto begin = std::chrono::steady_clock::now();
  try {
    ranks.sum(values);
  } catch (const RankFailure& failure) {
    const std::chrono::duration<float> passed = std::chrono::steady_clock::now() - begin;
    const int place = ranks.rank() - (ranks.rank() > victim ? 1 : 0);
    const auto second = backend.make(c10::make_intrusive<c10d::PrefixStore>("second", store), place,
                                     ranks.size() - 1, loopback());
    return {passed.count(), failure.operation() == "sum" ? 1.0F : 0.0F,
            static_cast<float>(second->sum(ranks.rank()))};
  }
  return {};
}

/// Images of one class, which a model soon knows, and two of another one, whose gradients are then
/// many times longer.
DataSet images_with_two_odd_ones() {
  constexpr std::uint32_t count = 90;
  std::vector<std::uint32_t> labels;
  std::vector<std::uint8_t> pixels;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool is_bright = i == 40 || i == 70;
    labels.push_back(is_bright ? 1 : 0);
    for (std::uint32_t pixel = 0; pixel < 784; ++pixel)
      pixels.push_back(static_cast<std::uint8_t>(is_bright ? 255 : (i + pixel) % 3));
  }
  return images(28, 28, std::move(pixels), std::move(labels));
}

}  // namespace

TEST_CASE("all hooks are in the list, and with 16 bits where they can have them") {
  for (const HookRow& row : hook_rows()) {
    const std::string name(row.name);
    CAPTURE(name);
    CHECK(is_listed(name));
    for (const char* prefix : {"fp16+", "bf16+"})
      CHECK(is_listed(prefix + name) == row.takes_16_bits);
  }
}

TEST_CASE("every hook and topology is near what one rank has, and the same on all ranks") {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    for (const int size : {2, 3, 4}) {
      CAPTURE(size);
      const RankProcesses processes(
          size, [](Ranks& ranks, const Ranks::Store&) { return try_all(ranks); }, loopback(),
          backend.make);
      const std::vector<float> first = processes.told(0);
      REQUIRE(first.size() == 4 * (hooks.size() + topologies_here().size()));
      for (int rank = 1; rank < size; ++rank) CHECK(processes.told(rank) == first);
      for (std::size_t i = 0; i < hooks.size() + topologies_here().size(); ++i) {
        const bool is_hook = i < hooks.size();
        const std::string name(is_hook ? hooks[i].first : topologies_here()[i - hooks.size()].name);
        CAPTURE(name);
        CHECK(first[4 * i] <= (is_hook ? hooks[i].second : 1e-6));
      }
    }
  }
}

TEST_CASE("each rank sends the bytes that it says") {
  constexpr int size = 4;
  const auto body = [](Ranks& ranks, const Ranks::Store&) {
    std::vector<float> numbers;
    const auto measure = [&](const std::function<void(torch::Tensor&)>& call) {
      torch::Tensor values = torch::ones({300'000}, torch::TensorOptions(ranks.device()));
      ranks.barrier();
      const std::uint64_t said = ranks.bytes_sent();
      const std::uint64_t carried = socket_bytes();
      call(values);
      ranks.barrier();
      numbers.push_back(static_cast<float>(ranks.bytes_sent() - said));
      numbers.push_back(static_cast<float>(socket_bytes() - carried));
    };
    measure([&](torch::Tensor& values) { ranks.sum(values); });
    measure([&](torch::Tensor& values) { ranks.broadcast(values, 1); });
    measure([&](torch::Tensor& values) { ranks.mean_in_rank_order(values); });
    for (const Topology& topology : topologies_here())
      measure([&](torch::Tensor& values) { sum_by(topology, values, {{0, 0, 1, 1}}, ranks); });
    return numbers;
  };
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    const RankProcesses processes(size, body, loopback(), backend.make);
    for (int rank = 0; rank < size; ++rank) {
      CAPTURE(rank);
      const std::vector<float> numbers = processes.told(rank);
      REQUIRE(numbers.size() == 2 * (3 + topologies_here().size()));
      for (std::size_t i = 0; i < numbers.size(); i += 2) {
        CAPTURE(i);
        CHECK(numbers[i + 1] >= numbers[i]);
        CHECK(numbers[i + 1] <= 1.01F * numbers[i] + 15'000);
      }
    }
  }
}

TEST_CASE("a gradient of unusual length on one of the ranks lets all of them fall back to fp32") {
  // With post-local-sgd each rank has a gradient of its own, and they have to ask each other.
  for (const std::string hook : {"allreduce", "post-local-sgd:4,start=0"}) {
    CAPTURE(hook);
    const RankProcesses processes(2, [&hook](Ranks& ranks, const Ranks::Store&) {
      Training training;
      training.model = "mlp";
      training.precision = "adaptive";
      training.hook = hook;
      training.settings = {.local_steps = 40, .batch_size = 1, .lr = 0.3, .seed = 11};
      training.data = images_with_two_odd_ones;
      const Trained trained = train_rank(ranks, training);
      const FallBacks& fall_backs = trained.report.fall_backs;
      std::vector<float> numbers = {
          static_cast<float>(trained.report.steps), static_cast<float>(fall_backs.fp32_steps),
          static_cast<float>(fall_backs.overflows), static_cast<float>(fall_backs.odd_norms)};
      numbers.insert(numbers.end(), trained.update.begin(), trained.update.end());
      return numbers;
    });
    const std::vector<float> first = processes.told(0);
    REQUIRE(first.size() > 4);
    CHECK(first[0] == 40);
    CHECK(first[1] >= 1);
    CHECK(first[1] < 40);
    CHECK(first[2] == 0);
    CHECK(first[3] >= 1);
    CHECK(processes.told(1) == first);
  }
}

TEST_CASE("a rank that is killed fails the others' sums, and they go on without it") {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    for (int victim = 0; victim < 3; ++victim) {
      CAPTURE(victim);
      const RankProcesses processes(
          3,
          [victim, &backend](Ranks& ranks, const Ranks::Store& store) {
            return outlive(ranks, store, victim, SIGKILL, backend);
          },
          loopback(), backend.make);
      for (int rank = 0; rank < 3; ++rank) {
        const std::vector<float> numbers = processes.told(rank);
        if (rank == victim) {
          CHECK(numbers.empty());
        } else {
          REQUIRE(numbers.size() == 3);
          CHECK(numbers[1] == 1);
          CHECK(numbers[2] == 3 - victim);
        }
      }
    }
  }
}

TEST_CASE("a rank that stops fails the others' sums at the deadline, and they go on without it") {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    const RankProcesses processes(
        3,
        [&backend](Ranks& ranks, const Ranks::Store& store) {
          return outlive(ranks, store, 1, SIGSTOP, backend);
        },
        loopback(backend.shortest), backend.make);
    float longest_s = 0;  // A rank that began later ends with the other one.
    for (const int rank : {0, 2}) {
      const std::vector<float> numbers = processes.told(rank);
      REQUIRE(numbers.size() == 3);
      longest_s = std::max(longest_s, numbers[0]);
      CHECK(numbers[1] == 1);
      CHECK(numbers[2] == 2);
    }
    CHECK(longest_s >= 0.9F * std::chrono::duration<float>(backend.shortest).count());
  }
}

}  // namespace fl::test
