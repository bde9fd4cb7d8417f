// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, which meet in a store in memory and talk over Gloo on loopback.
// Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "client/site/rank/ranks.hpp"

#include <ATen/Parallel.h>
#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace fl::test {

using namespace fl::site;

inline RankOptions loopback(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return {.timeout = timeout, .interface = "lo"};
}

/// Calls body(ranks) on `size` threads, each of them one rank, once all have their group: one that
/// leaves at once would disturb the connecting of others. Rethrows the exception of the first rank
/// that has one, after all have ended.
inline void on_ranks(int size, const std::function<void(Ranks&)>& body,
                     const RankOptions& options = loopback()) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::latch tried(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // For this thread's operations: the ranks share few cores.
      std::unique_ptr<Ranks> ranks;
      try {
        ranks = make_gloo_ranks(store, rank, size, options);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
      tried.arrive_and_wait();
      if (!ranks) return;
      try {
        body(*ranks);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// The bytes that all TCP sockets of this process have sent, as the kernel counts them, each once.
inline std::uint64_t socket_bytes() {
  std::uint64_t bytes = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    tcp_info info = {};
    socklen_t length = sizeof info;
    if (::getsockopt(std::atoi(entry->d_name), IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
      bytes += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  }
  ::closedir(folder);
  return bytes;
}

}  // namespace fl::test
