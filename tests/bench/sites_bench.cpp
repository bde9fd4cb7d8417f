// SPDX-License-Identifier: Apache-2.0
// sites_bench [RANKS [sums | HOOK …]]: what the ranks of a site take on this machine, over Gloo on
// loopback, each rank a process with one thread (by default 4 ranks).
//
// - A sum of fp32 values by size and topology, beside Gloo's own. The topologies take turns in each
//   lap, so that a busy machine slows all alike; the median of the laps is shown.
// - Each gradient hook on a bucket of 25 MiB: milliseconds, those of a processor that a rank takes,
//   which other programs do not lengthen, and bytes sent by each rank, beside what fp32 sends and
//   what the hook's definition asks for.
//
// With further arguments, only these hooks, or only the sums: sites_bench 2 topk:0.01 sign, and
// sites_bench 2 sums
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/topology.hpp"
#include "tests/client/site/hook_bytes.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_processes.hpp"

#include <fmt/format.h>

#include <sys/resource.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using fl::site::Ranks;
using fl::site::Topology;

constexpr std::int64_t sizes[] = {4 << 10, 256 << 10, 4 << 20, 32 << 20};  // Bytes.
constexpr int laps = 21;

const std::vector<std::string_view> all_hooks = {"allreduce",
                                                 "fp16",
                                                 "bf16",
                                                 "powersgd:4,start=2",
                                                 "batched-powersgd:4,start=2",
                                                 "quantize:8",
                                                 "quantize:8,channel=512",
                                                 "topk:0.01",
                                                 "bf16+topk:0.01",
                                                 "randk:0.01",
                                                 "qsgd:4",
                                                 "sign",
                                                 "onebit-adam:2",
                                                 "codec:qsgd:7",
                                                 "codec:ecuq:2+ef",
                                                 "codec:topk:0.015625+qsgd:1+ef"};
constexpr std::int64_t bucket_rows = 3200;
constexpr std::int64_t bucket_columns = 2048;
constexpr int hook_steps = 5;  // The first two have what starts later start.

template <class Call>
float seconds(Ranks& ranks, const Call& call) {
  ranks.barrier();
  const auto begin = std::chrono::steady_clock::now();
  call();
  ranks.barrier();
  return std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count();
}

float median(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The processor time of this process, in seconds.
float processor_s() {
  rusage used = {};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return static_cast<float>(seconds_of(used.ru_utime) + seconds_of(used.ru_stime));
}

/// [size][topology] in seconds; two ranks share a node.
std::vector<float> time_sums(Ranks& ranks) {
  fl::site::Nodes nodes;
  for (int rank = 0; rank < ranks.size(); ++rank) nodes.node.push_back(rank / 2);
  std::vector<float> medians;
  for (const std::int64_t bytes : sizes) {
    std::vector<std::vector<float>> times(fl::site::topologies().size());
    torch::Tensor values = torch::ones({bytes / 4});
    for (int lap = 0; lap < laps; ++lap) {
      for (std::size_t i = 0; i < fl::site::topologies().size(); ++i) {
        values.fill_(1);
        times[i].push_back(seconds(
            ranks, [&] { fl::site::sum_by(fl::site::topologies()[i], values, nodes, ranks); }));
      }
    }
    for (const auto& of_topology : times) medians.push_back(median(of_topology));
  }
  return medians;
}

/// [hook][seconds, seconds of a processor, bytes of a step].
std::vector<float> time_hooks(Ranks& ranks, const std::vector<std::string_view>& hooks) {
  std::vector<float> numbers;
  const std::vector<fl::test::Shapes> shapes = {{{0, {bucket_rows, bucket_columns}}}};
  for (const std::string_view spec : hooks) {
    const auto hook = std::move(fl::site::parse_hook(spec).value().hook);
    std::vector<float> times;
    std::vector<float> processor;
    std::uint64_t bytes = 0;
    for (int step = 0; step < hook_steps; ++step) {
      fl::site::Bucket bucket = fl::test::made_up_bucket(shapes, 0, step, ranks.rank());
      bytes = ranks.bytes_sent();
      const float before_s = processor_s();
      const float time_s = seconds(ranks, [&] { hook->reduce(bucket, ranks); });
      bytes = ranks.bytes_sent() - bytes;
      if (step < 2) continue;
      times.push_back(time_s);
      processor.push_back(processor_s() - before_s);
    }
    numbers.push_back(median(times));
    numbers.push_back(median(processor));
    numbers.push_back(static_cast<float>(bytes));
  }
  return numbers;
}

void print_sums(int size, const std::vector<float>& numbers) {
  fmt::print("Sums of fp32 values over {} ranks, in ms (in parts of Gloo's speed)\n\n{:>10}", size,
             "KiB");
  for (const Topology& topology : fl::site::topologies()) fmt::print("{:>20}", topology.name);
  const float* number = numbers.data();
  for (const std::int64_t bytes : sizes) {
    fmt::print("\n{:>10}", bytes / 1024);
    const float gloo_s = *number;
    for (std::size_t i = 0; i < fl::site::topologies().size(); ++i, ++number)
      fmt::print("{:>12.2f} ({:.2f}x)", *number * 1e3F, gloo_s / *number);
  }
  fmt::print("\n\n");
}

void print_hooks(int size, const std::vector<std::string_view>& hooks,
                 std::span<const float> numbers) {
  const auto theory = fl::test::hook_bytes(
      {.ranks = static_cast<double>(size), .rows = bucket_rows, .columns = bucket_columns});
  const auto expected = [&theory](std::string_view hook) {
    const auto found = std::ranges::find(theory, hook, &std::pair<std::string, double>::first);
    return found == theory.end() ? 0 : found->second;
  };
  const double fp32 = expected("allreduce") / size;
  fmt::print("Hooks on a bucket of {} MiB\n\n{:<34}{:>10}{:>14}{:>14}{:>12}{:>12}\n",
             bucket_rows * bucket_columns * 4 >> 20, "hook", "ms", "processor ms", "kB a rank",
             "of fp32's", "of theory");
  const float* number = numbers.data();
  for (const std::string_view hook : hooks) {
    const float time_s = *number++;
    const float busy_s = *number++;
    const float bytes = *number++;
    const double least = expected(hook) / size;
    fmt::print("{:<34}{:>10.1f}{:>14.1f}{:>14.1f}{:>11.2f}%{:>12}\n", hook, time_s * 1e3F,
               busy_s * 1e3F, bytes / 1e3F, 100 * bytes / fp32,
               least > 0 ? fmt::format("{:.3f}x", bytes / least) : "-");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int size = count > 1 ? std::atoi(arguments[1]) : 4;
  if (size < 2 || size > 64) {
    fmt::print(stderr, "sites_bench [RANKS], from 2 to 64\n");
    return 2;
  }
  std::vector<std::string_view> hooks(arguments + std::min(count, 2), arguments + count);
  const bool has_sums = hooks.empty() || hooks.front() == "sums";
  if (hooks.empty())
    hooks = all_hooks;
  else if (has_sums)
    hooks.clear();
  const fl::test::RankProcesses processes(
      size,
      [&](Ranks& ranks, const Ranks::Store&) {
        std::vector<float> numbers;
        if (has_sums) numbers = time_sums(ranks);
        const std::vector<float> of_hooks = time_hooks(ranks, hooks);
        numbers.insert(numbers.end(), of_hooks.begin(), of_hooks.end());
        return numbers;
      },
      fl::test::loopback(std::chrono::seconds(120)));
  const std::vector<float> numbers = processes.told(0);
  const std::size_t sums = has_sums ? std::size(sizes) * fl::site::topologies().size() : 0;
  if (numbers.size() != sums + 3 * hooks.size()) {
    fmt::print(stderr, "a rank failed\n");
    return 1;
  }
  if (has_sums) print_sums(size, numbers);
  if (!hooks.empty()) print_hooks(size, hooks, std::span(numbers).subspan(sums));
  return 0;
}
