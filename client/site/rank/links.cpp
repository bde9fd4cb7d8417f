// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/links.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace fl::site {

namespace {

using std::chrono::steady_clock;

/// The least time of some exchanges with another rank, in seconds.
double exchange_s(Ranks& ranks, int other, std::int64_t bytes, int repeats) {
  const torch::Tensor out =
      torch::zeros({bytes}, torch::TensorOptions(ranks.device()).dtype(torch::kUInt8));
  const torch::Tensor in = torch::empty_like(out);
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= repeats;
       ++i) {  // The first exchange is not counted: it connects, or wakes threads up.
    const auto begin = steady_clock::now();
    const Transfer send{.rank = other, .tensor = out};
    const Transfer receive{.rank = other, .tensor = in};
    ranks.exchange({&send, 1}, {&receive, 1});
    if (i > 0)
      least = std::min(least, std::chrono::duration<double>(steady_clock::now() - begin).count());
  }
  return least;
}

}  // namespace

Links measure_links(Ranks& ranks, std::int64_t bytes, int repeats) {
  const auto size = static_cast<std::int64_t>(ranks.size());
  torch::Tensor times = torch::zeros({2, size, size}, torch::kFloat64);
  for (int first = 0; first < size; ++first) {
    for (int second = first + 1; second < size; ++second) {
      ranks.barrier();
      if (ranks.rank() != first && ranks.rank() != second) continue;
      const int other = ranks.rank() == first ? second : first;
      const double latency_s = exchange_s(ranks, other, 1, 4 * repeats);
      const double large_s = exchange_s(ranks, other, bytes, repeats);
      times[0][ranks.rank()][other] = latency_s;
      // A large message may by chance take no longer than a small one.
      times[1][ranks.rank()][other] =
          static_cast<double>(bytes) / std::max(large_s - latency_s, 0.05 * large_s);
    }
  }
  torch::Tensor on_device = times.to(ranks.device());
  ranks.sum(on_device);  // Each rank has filled its own rows.
  times = on_device.cpu();
  Links links;
  for (auto* matrix : {&links.latency_s, &links.bytes_per_s}) {
    const torch::Tensor values = times[matrix == &links.latency_s ? 0 : 1].contiguous();
    for (std::int64_t row = 0; row < size; ++row) {
      const double* first = values.const_data_ptr<double>() + row * size;
      matrix->emplace_back(first, first + size);
    }
  }
  return links;
}

}  // namespace fl::site
