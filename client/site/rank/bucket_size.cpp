// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/bucket_size.hpp"

#include "shared/base/log.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace fl::site {

namespace {

constexpr double mb_min = 0.01;
constexpr double mb_max = 4096;

constexpr std::int64_t small_bytes = 64 << 10;
constexpr std::int64_t medium_bytes = 1 << 20;
constexpr std::int64_t large_bytes = 8 << 20;
constexpr double medium_s_max = 0.05;  // If one takes longer, a large sum is not tried.
constexpr int trials = 3;

constexpr std::size_t bucket_bytes_min = 512 << 10;
constexpr std::size_t bucket_bytes_max = 32 << 20;

/// The least time of some sums, as rank 0 measures it.
double sum_s(std::int64_t bytes, const Topology& topology, const Nodes& nodes, Ranks& ranks) {
  const auto options = torch::TensorOptions(ranks.device());
  torch::Tensor values = torch::zeros({bytes / 4}, options.dtype(torch::kFloat32));
  double least = std::numeric_limits<double>::infinity();
  // The first sum is not counted: it connects, or wakes threads up.
  for (int i = 0; i <= trials; ++i) {
    ranks.barrier();
    const auto begin = std::chrono::steady_clock::now();
    sum_by(topology, values, nodes, ranks);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (i > 0) least = std::min(least, passed.count());
  }
  torch::Tensor told = torch::full({1}, least, options.dtype(torch::kFloat64));
  ranks.broadcast(told, 0);
  return told.item<double>();
}

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

Result<BucketChoice> parse_bucket_mb(std::string_view text) {
  if (text.empty()) return BucketChoice{};
  if (text == "auto") return BucketChoice{.mb = 0, .is_measured = true};
  const auto mb = number_in<double>(text);
  if (mb && *mb >= mb_min && *mb <= mb_max) return BucketChoice{.mb = *mb};
  return Error(Errc::invalid_input, fmt::format("'{}' is neither auto nor a number of MiB from {} "
                                                "to {}",
                                                text, mb_min, mb_max));
}

bool is_free_of_bucket_size(const Topology& topology, int ranks) {
  return ranks <= topology.ranks_max_of_same_bits;
}

SumCost measure_sum(const Topology& topology, const Nodes& nodes, Ranks& ranks) {
  const double small_s = sum_s(small_bytes, topology, nodes, ranks);
  double long_s = sum_s(medium_bytes, topology, nodes, ranks);
  std::int64_t bytes = medium_bytes;
  if (long_s < medium_s_max) {
    bytes = large_bytes;
    long_s = sum_s(large_bytes, topology, nodes, ranks);
  }
  // A long sum may by chance take no longer than a small one.
  const double s_per_byte =
      std::max(long_s - small_s, 0.05 * long_s) / static_cast<double>(bytes - small_bytes);
  return {.latency_s = std::max(small_s - s_per_byte * small_bytes, 0.05 * small_s),
          .s_per_byte = s_per_byte};
}

std::size_t best_bucket_bytes(std::size_t model_bytes, const SumCost& cost) {
  const double best =
      std::sqrt(static_cast<double>(model_bytes) * cost.latency_s / cost.s_per_byte);
  std::size_t bytes = bucket_bytes_min;
  while (bytes < bucket_bytes_max && static_cast<double>(bytes) * std::sqrt(2.0) < best) bytes *= 2;
  return bytes;
}

Result<std::size_t> choose_bucket_bytes(const BucketPlan& plan, const Nodes& nodes,
                                        MeasuredChoices& choices, Ranks& ranks) {
  FL_TRY(const BucketChoice choice, parse_bucket_mb(plan.bucket_mb));
  if (choice.mb > 0) return static_cast<std::size_t>(choice.mb * (1 << 20));
  const bool is_by_element = plan.hook == "allreduce" || plan.hook == "bf16";
  const bool is_free = is_by_element && !plan.is_topology_measured &&
                       is_free_of_bucket_size(plan.topology, ranks.size());
  // The first piece is of 1 MiB.
  if (ranks.size() == 1 || plan.model_bytes <= 1 << 20 || (!choice.is_measured && !is_free))
    return bucket_bytes_otherwise;
  const std::string key = fmt::format(
      "bytes of pieces: model of {} bytes, {} ranks on {}, topology {}, hook {}", plan.model_bytes,
      ranks.size(), ranks.device().is_cpu() ? "CPUs" : "GPUs", plan.topology.name, plan.hook);
  if (const auto kept = choices.find(key); kept != choices.end() && !is_free) {
    const auto bytes = number_in<std::size_t>(kept->second);
    if (!bytes || *bytes == 0) return no_choice(*kept);
    log_info("gradients go in pieces of {:.3g} MiB, as measured before", mib(*bytes));
    return *bytes;
  }
  const SumCost cost = measure_sum(plan.topology, nodes, ranks);
  const std::size_t bytes = best_bucket_bytes(plan.model_bytes, cost);
  if (!is_free) choices[key] = std::to_string(bytes);
  log_info(
      "gradients go in pieces of {:.3g} MiB, as measured now: a sum takes {:.2g} ms, and {:.3g} ms "
      "for each MB",
      mib(bytes), cost.latency_s * 1e3, cost.s_per_byte * 1e9);
  return bytes;
}

}  // namespace fl::site
