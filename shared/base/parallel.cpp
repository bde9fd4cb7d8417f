#include "shared/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace fl {

int threads_for(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void for_each_run(
    std::size_t count, std::size_t run, int threads,
    const std::function<void(std::size_t lane, std::size_t begin, std::size_t end)>& use) {
  const std::size_t runs = (count + run - 1) / run;
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t lane) {
    for (std::size_t i = next++; i < runs; i = next++)
      use(lane, i * run, std::min(count, (i + 1) * run));
  };
  std::vector<std::jthread> others;
  const std::size_t lanes = std::min(runs, static_cast<std::size_t>(std::max(1, threads)));
  try {
    for (std::size_t lane = 1; lane < lanes; ++lane) others.emplace_back(work, lane);
  } catch (const std::system_error&) {
    // The lanes that there are do all.
  }
  work(0);
}

}  // namespace fl
