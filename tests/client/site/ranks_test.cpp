// SPDX-License-Identifier: Apache-2.0
// Collectives of a group of ranks: values, bytes, and what happens when a rank dies or hangs.
#include "client/site/rank/own_gpu.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <atomic>
#include <map>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

/// The values of rank `rank`: other values on each rank, equal ones in each run.
torch::Tensor values_of(int rank, std::int64_t length) {
  return torch::sin(torch::arange(length, torch::kFloat32) * (rank + 1)) * 100;
}

torch::Tensor mean_of(int size, std::int64_t length) {
  torch::Tensor sum = values_of(0, length);
  for (int rank = 1; rank < size; ++rank) sum += values_of(rank, length);
  return sum / size;
}

}  // namespace

TEST_CASE("collectives give what they promise at every size of group") {
  for (const int size : {1, 2, 3, 4, 5}) {
    CAPTURE(size);
    std::atomic<int> right = 0;
    on_ranks(size, [&](Ranks& ranks) {
      const int rank = ranks.rank();
      torch::Tensor sum = values_of(rank, 1001);
      ranks.sum(sum);
      right += torch::allclose(sum, mean_of(size, 1001) * size, 1e-5, 1e-3);

      const std::int64_t big = std::int64_t{1} << 60;  // A double would round it.
      right += ranks.sum(big / size + rank) == big / size * size + size * (size - 1) / 2;

      torch::Tensor copy = values_of(rank, 17).to(torch::kBFloat16);
      ranks.broadcast(copy, size - 1);
      right += copy.equal(values_of(size - 1, 17).to(torch::kBFloat16));

      torch::Tensor all = torch::empty({size, 3, 5});
      ranks.all_gather(all, values_of(rank, 15).view({3, 5}));
      for (int i = 0; i < size; ++i) right += all[i].flatten().equal(values_of(i, 15));

      // Rank s sends r + 1 rows to rank r.
      std::vector<std::int64_t> in_rows;
      for (int i = 0; i < size; ++i) in_rows.push_back(i + 1);
      const std::int64_t in_count = size * (size + 1) / 2;
      torch::Tensor received = torch::empty({size * (rank + 1), 2});
      ranks.all_to_all(received, torch::full({in_count, 2}, static_cast<float>(rank)),
                       std::vector<std::int64_t>(static_cast<size_t>(size), rank + 1), in_rows);
      for (int i = 0; i < size; ++i)
        right += received.narrow(0, i * (rank + 1), rank + 1).eq(i).all().item<bool>();
      ranks.barrier();

      for (const std::int64_t length : {0, 1, 7, 1024, 4099}) {
        torch::Tensor mean = values_of(rank, length);
        ranks.mean_in_rank_order(mean);
        right += mean.equal(mean_of(size, length));  // The bits are equal.
      }
    });
    CHECK(right == size * (3 + 2 * size + 5));
  }
}

TEST_CASE("an exchange meets in order, whoever starts first") {
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    const int next = (ranks.rank() + 1) % 3;
    const int previous = (ranks.rank() + 2) % 3;
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
    for (int i = 0; i < 4; ++i) {
      sends.push_back({next, torch::full({100'000 * i}, 10 * ranks.rank() + i, torch::kInt)});
      receives.push_back({previous, torch::zeros({100'000 * i}, torch::kInt)});
    }
    ranks.exchange(sends, receives);
    for (int i = 0; i < 4; ++i)
      right += receives[static_cast<size_t>(i)].tensor.eq(10 * previous + i).all().item<bool>();
    torch::Tensor value = torch::tensor({1.5F});
    if (ranks.rank() == 0) send(ranks, value, 2);
    if (ranks.rank() == 2) receive(ranks, value.zero_(), 0);
    right += value.item<float>() == 1.5F;
  });
  CHECK(right == 3 * 5);
}

TEST_CASE("ranks that are about to make different calls hear so before they wait for each other") {
  RankOptions options = loopback(std::chrono::seconds(30));
  options.checks_order = true;
  options.shares_memory = true;
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string what : {"other call", "other size", "one more", "none"}) {
    CAPTURE(what);
    std::atomic<int> named = 0;
    std::atomic<int> right = 0;
    on_ranks(
        2,
        [&](Ranks& ranks) {
          const auto group = ranks.subgroup({0, 1}, "steps");
          torch::Tensor values = torch::ones({8});
          group->sum(values);
          group->barrier();
          try {
            const bool is_odd = ranks.rank() == 1;
            if (is_odd && what == "other size") values = torch::ones({9});
            if (is_odd && what == "one more") group->barrier();
            if (is_odd && what == "other call")
              group->broadcast(values, 0);
            else
              group->sum(values);
            right += values.eq(4).all().item<bool>();
          } catch (const RankFailure& failure) {
            const std::string_view text = failure.what();
            named += text.find("ranks are about to make different calls, as number 3") !=
                         std::string_view::npos &&
                     text.find("rank 0 ") != std::string_view::npos &&
                     text.find("rank 1 ") != std::string_view::npos &&
                     text.find("sum of 32 bytes") != std::string_view::npos;
          }
        },
        options);
    CHECK(named == (what == "none" ? 0 : 2));
    CHECK(right == (what == "none" ? 2 : 0));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));
}

TEST_CASE(
    "a posted transfer goes on by itself, meets its number, and may take longer than a call") {
  const RankOptions hurried = loopback(std::chrono::seconds(1));
  std::atomic<int> right = 0;
  on_ranks(
      2,
      [&](Ranks& ranks) {
        torch::Tensor first = torch::full({1000}, 1 + ranks.rank());
        torch::Tensor second = torch::full({1000}, 10 + ranks.rank());
        if (ranks.rank() == 0) {
          auto one = ranks.post(Ranks::Way::send, {1, first}, 5);
          auto two = ranks.post(Ranks::Way::send, {1, second}, 6);
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          CHECK(ranks.bytes_sent() == 0);  // What has not been waited for does not count yet.
          ranks.finish(one, 3);
          ranks.finish(two, 3);
          CHECK(ranks.bytes_sent() == 2 * 1000 * sizeof(std::int64_t));
          auto late = ranks.post(Ranks::Way::send, {1, first}, 7);
          ranks.finish(late, 3);
          return;
        }
        auto two = ranks.post(Ranks::Way::receive, {0, first}, 6);
        auto one = ranks.post(Ranks::Way::receive, {0, second}, 5);
        ranks.finish(two, 1);
        ranks.finish(one, 1);
        right += first.eq(10).all().item<bool>() && second.eq(1).all().item<bool>();
        auto late = ranks.post(Ranks::Way::receive, {0, first}, 7);
        ranks.finish(late, 3);
        right += first.eq(1).all().item<bool>();
      },
      hurried);
  CHECK(right == 2);
}

TEST_CASE("a step of an exchange sends what the steps before it have received") {
  constexpr int size = 4;
  std::atomic<int> right = 0;
  on_ranks(size, [&](Ranks& ranks) {
    const int next = (ranks.rank() + 1) % size;
    const int previous = (ranks.rank() + size - 1) % size;
    // A piece that comes is one more in each step, and goes on; every other piece is empty.
    std::vector<Step> steps;
    torch::Tensor at_hand = torch::full({50'000}, 100 * ranks.rank(), torch::kInt);
    std::vector<std::size_t> order;
    for (int i = 0; i < 6; ++i) {
      const torch::Tensor none = torch::zeros({0}, torch::kInt);
      const torch::Tensor coming = torch::zeros({50'000}, torch::kInt);
      steps.push_back({.sends = {{next, none}, {next, at_hand}},
                       .receives = {{previous, none}, {previous, coming}},
                       .received = [&order, coming, i](std::size_t j) {
                         order.push_back(2 * static_cast<std::size_t>(i) + j);
                         if (j == 1) coming.add_(1);
                       }});
      at_hand = coming;
    }
    ranks.exchange(steps);
    right += at_hand.eq(100 * ((ranks.rank() + 2 * size - 6) % size) + 6).all().item<bool>();
    for (std::size_t i = 0; i < 12; ++i) right += order.at(i) == i;
    ranks.exchange(std::span<const Step>{});
    right += ranks.bytes_sent() == 6 * 200'000;
  });
  CHECK(right == size * 14);
}

TEST_CASE("a subgroup has the members that it was asked for, in their order") {
  std::atomic<int> right = 0;
  on_ranks(4, [&](Ranks& ranks) {
    if (ranks.rank() == 1) return;
    const auto some = ranks.subgroup({3, 0, 2}, "some");
    torch::Tensor all = torch::empty({3, 1}, torch::kInt64);
    some->all_gather(all, torch::tensor({ranks.rank()}, torch::kInt64));
    right += all.flatten().equal(torch::tensor({3, 0, 2}, torch::kInt64));
    right += std::vector{3, 0, 2}.at(static_cast<size_t>(some->rank())) == ranks.rank();
  });
  CHECK(right == 6);
}

TEST_CASE("a grid of 2 x 2 x 2 ranks has a group along each axis for each rank") {
  // As data, tensor and pipeline parallelism would have it: rank = 4 z + 2 y + x.
  std::atomic<int> right = 0;
  on_ranks(8, [&](Ranks& ranks) {
    const int self = ranks.rank();
    std::vector<std::unique_ptr<Ranks>> axes;
    for (const int stride : {1, 2, 4}) {
      const int first = self & ~stride;
      axes.push_back(ranks.subgroup({first, first + stride}, fmt::format("{} {}", stride, first)));
    }
    // All are there at the same time, and calls of one do not meet those of another.
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (std::size_t axis = 0; axis < 3; ++axis) {
        const int other = self ^ (1 << axis);
        right += axes[axis]->sum(self + 100 * repeat) == self + other + 200 * repeat;
        right += axes[axis]->rank() == (self >> axis & 1) && axes[axis]->size() == 2;
      }
    }
    // A sum along each axis, one after the other, is the sum over the grid.
    std::int64_t sum = std::int64_t{1} << (4 * self);
    for (const auto& axis : axes) sum = axis->sum(sum);
    right += sum == 0x11111111;
    // A plane of the grid: four ranks, of which each has its place by x and y.
    const int plane = self & 4;
    const auto slice =
        ranks.subgroup({plane, plane + 1, plane + 2, plane + 3}, fmt::format("plane {}", plane));
    right += slice->sum(self) == 4 * plane + 6;
    right += ranks.sum(std::int64_t{1}) == 8;  // The whole goes on beside its parts.
  });
  CHECK(right == 8 * (3 * 3 * 2 + 3));
}

TEST_CASE("bytes_sent() is what the sockets carry") {
  constexpr std::int64_t length = 1'000'003;
  using Call = std::function<void(Ranks&, torch::Tensor&)>;
  const std::vector<std::pair<std::string, Call>> calls = {
      {"sum", [](Ranks& ranks, torch::Tensor& values) { ranks.sum(values); }},
      {"broadcast", [](Ranks& ranks, torch::Tensor& values) { ranks.broadcast(values, 1); }},
      {"all-gather",
       [](Ranks& ranks, torch::Tensor& values) {
         torch::Tensor all = torch::empty({ranks.size(), length});
         ranks.all_gather(all, values);
       }},
      {"mean", [](Ranks& ranks, torch::Tensor& values) { ranks.mean_in_rank_order(values); }},
      {"exchange",
       [](Ranks& ranks, torch::Tensor& values) {
         torch::Tensor other = torch::empty_like(values);
         const Transfer in{(ranks.rank() + ranks.size() - 1) % ranks.size(), other};
         const Transfer out{(ranks.rank() + 1) % ranks.size(), values};
         ranks.exchange({&out, 1}, {&in, 1});
       }},
      {"steps", [](Ranks& ranks, torch::Tensor& values) {
         const int next = (ranks.rank() + 1) % ranks.size();
         const int previous = (ranks.rank() + ranks.size() - 1) % ranks.size();
         const std::vector<Step> steps(
             3,
             Step{.sends = {{next, values}}, .receives = {{previous, torch::empty_like(values)}}});
         ranks.exchange(steps);
       }}};
  for (const int size : {2, 3, 4}) {
    for (const auto& one : calls) {
      const std::string& name = one.first;
      const Call& call = one.second;
      CAPTURE(size);
      CAPTURE(name);
      std::atomic<std::uint64_t> said = 0;
      std::uint64_t before = 0;
      std::uint64_t after = 0;
      on_ranks(size, [&](Ranks& ranks) {
        torch::Tensor values = values_of(ranks.rank(), length);
        ranks.barrier();
        if (ranks.rank() == 0) before = socket_bytes();
        ranks.barrier();
        const std::uint64_t begin = ranks.bytes_sent();
        call(ranks, values);
        said += ranks.bytes_sent() - begin;
        ranks.barrier();
        if (ranks.rank() == 0) after = socket_bytes();
        ranks.barrier();
      });
      const double carried = static_cast<double>(after - before);
      CHECK(said >= 4 * length);
      CHECK(static_cast<double>(said) == doctest::Approx(carried).epsilon(0.002));
    }
  }
}

TEST_CASE("what the groups of a group send counts as its own too") {
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    const auto all = ranks.subgroup({0, 1, 2}, "all");
    const std::uint64_t before = ranks.bytes_sent();
    if (ranks.rank() < 2) {
      const auto some = all->subgroup({0, 1}, "some");
      const std::uint64_t begin = some->bytes_sent();
      torch::Tensor values = torch::ones({100'000});
      some->sum(values);
      right += some->bytes_sent() - begin == 400'000;
    }
    const std::uint64_t sent = ranks.rank() < 2 ? 400'000 : 0;
    right += all->bytes_sent() == sent && ranks.bytes_sent() - before == sent;
    torch::Tensor values = torch::ones({300});
    all->sum(values);
    right += all->bytes_sent() == sent + 1600;
  });
  CHECK(right == 2 + 2 * 3);
}

TEST_CASE("a rank that leaves makes the others fail at once, and then for good") {
  std::atomic<int> failed = 0;
  on_ranks(3, [&](Ranks& ranks) {
    torch::Tensor values = values_of(ranks.rank(), 100'000);
    ranks.sum(values);
    if (ranks.rank() == 1) return;
    try {
      ranks.sum(values);
    } catch (const RankFailure& failure) {
      failed += failure.operation() == "sum" && failure.rank() == -1;
    }
    try {
      ranks.barrier();
    } catch (const RankFailure& failure) {
      failed += std::string_view(failure.what()) == "barrier failed: the group failed before";
    }
  });
  CHECK(failed == 4);
}

TEST_CASE("a rank that leaves or hangs within an exchange of several steps makes it end") {
  for (const bool hangs : {false, true}) {
    CAPTURE(hangs);
    std::atomic<int> failed = 0;
    on_ranks(
        3,
        [&](Ranks& ranks) {
          const int next = (ranks.rank() + 1) % 3;
          const int previous = (ranks.rank() + 2) % 3;
          std::vector<Step> steps;
          for (int i = 0; i < 4; ++i)
            steps.push_back({.sends = {{next, torch::ones({1000})}},
                             .receives = {{previous, torch::zeros({1000})}}});
          if (ranks.rank() == 1) {
            ranks.exchange({steps.data(), 1});  // Does only one of the four steps.
            while (hangs && failed < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            return;
          }
          try {
            ranks.exchange(steps);
          } catch (const RankFailure&) {
            ++failed;
          }
        },
        loopback(std::chrono::milliseconds(500)));
    CHECK(failed == 2);
  }
}

TEST_CASE("a rank that hangs is noticed by the deadline, and named where one waits for it") {
  std::atomic<int> failed = 0;
  std::atomic<int> waiting = 2;
  const auto begin = std::chrono::steady_clock::now();
  const auto until_failed = [&](const std::function<void()>& call, int rank) {
    try {
      call();
    } catch (const RankFailure& failure) {
      failed += failure.rank() == rank;
    }
    --waiting;
  };
  on_ranks(
      3,
      [&](Ranks& ranks) {
        torch::Tensor values = values_of(ranks.rank(), 10);
        ranks.sum(values);
        if (ranks.rank() == 0) until_failed([&] { receive(ranks, values, 1); }, 1);
        if (ranks.rank() == 2) until_failed([&] { ranks.sum(values); }, -1);
        while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      },
      loopback(std::chrono::milliseconds(1000)));
  CHECK(failed == 2);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(990));
}

TEST_CASE("a rank that never comes ends the making of the group") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK_THROWS_AS((void)make_gloo_ranks(store, 0, 2, loopback(std::chrono::milliseconds(300))),
                  RankFailure);
}

TEST_CASE("NCCL's groups leave the process alive, and end their calls within the group's time") {
  std::map<std::string, NcclVariable> all;
  for (const NcclVariable& variable : nccl_variables(std::chrono::milliseconds(1500)))
    all.emplace(variable.name, variable);
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING",
                           "TORCH_NCCL_DUMP_ON_TIMEOUT"}) {
    CAPTURE(name);
    CHECK(all.at(name).value == "0");
    CHECK(all.at(name).overwrites);
  }
  CHECK(all.at("TORCH_NCCL_NONBLOCKING_TIMEOUT").value == "2");
  CHECK(all.at("TORCH_NCCL_NONBLOCKING_TIMEOUT").overwrites);
  CHECK(!all.at("TORCH_NCCL_BLOCKING_WAIT").overwrites);
  for (const NcclVariable& variable : nccl_variables(std::chrono::milliseconds(0)))
    if (std::string_view(variable.name) == "TORCH_NCCL_NONBLOCKING_TIMEOUT")
      CHECK(variable.value == "1");
}

TEST_CASE("the reason of a failure has no stack of functions") {
  std::string reason;
  try {
    TORCH_CHECK(false, "the link is cut");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("frame #") != std::string::npos);
    reason = reason_of(error);
  }
  CHECK(reason == "the link is cut");
  CHECK(reason_of(std::runtime_error("a rank has died")) == "a rank has died");
}

TEST_CASE("a build without NCCL says so") {
  if (has_nccl()) return;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  CHECK_THROWS_AS((void)make_nccl_ranks(store, 0, 1, 0), RankFailure);
}

TEST_CASE("threads and groups of groups share memory too, and each has its own") {
  RankOptions options = loopback();
  options.shares_memory = true;
  std::atomic<int> right = 0;
  on_ranks(
      4,
      [&](Ranks& ranks) {
        const int half = ranks.rank() / 2;
        const auto pair = ranks.subgroup({2 * half, 2 * half + 1}, std::to_string(half));
        for (int i = 0; i < 50; ++i) {
          right += ranks.sum(ranks.rank()) == 6;
          right += pair->sum(ranks.rank()) == 4 * half + 1;
        }
      },
      options);
  CHECK(right == 400);
}

TEST_CASE("a rank takes the GPU of its number, or the one that it alone is shown") {
  SitePlace place;
  place.local_rank = 1;
  place.local_size = 2;
  CHECK(gpu_of("auto", place, 2, false) == 1);
  CHECK(gpu_of("auto", place, 2, true) == 1);
  CHECK(gpu_of("auto", place, 1, true) == 0);
  CHECK(gpu_of("auto", place, 1, false) == 1);  // Which is not there: two ranks do not share one.
  CHECK(gpu_of("cuda", place, 2, false) == 1);
  CHECK(gpu_of("cuda:0", place, 2, false) == 0);
  CHECK(!gpu_of("cpu", place, 2, false).has_value());
  CHECK(!gpu_of("auto", place, 0, false).has_value());
  place.local_rank = 0;
  CHECK(gpu_of("auto", place, 1, false) == 0);
  CHECK(gpu_address(-1).empty());
  CHECK(gpu_address(1000).empty());
}

}  // namespace fl::test
