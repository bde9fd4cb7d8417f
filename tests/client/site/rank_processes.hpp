// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of their own, which meet in a file and talk over Gloo or NCCL on loopback. A
// test program that uses this must not compute with libtorch itself, nor ask it for GPUs: its
// children are forks of it, and neither libtorch's threads nor CUDA survive that.
// Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "tests/client/site/rank_threads.hpp"
#include "tests/support/temporary_folder.hpp"

#include <torch/cuda.h>

#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

namespace fl::test {

/// Makes the group of a process.
using MakeRanks = std::function<std::unique_ptr<Ranks>(Ranks::Store store, int rank, int size,
                                                       const RankOptions& options)>;

/// A group of processes that share the first GPU, over NCCL. NCCL refuses ranks of one machine that
/// share a GPU, so each says that it is a machine of its own: they talk over TCP, by a ring and
/// without flags between the values, so that the bytes are those of the formulas.
inline std::unique_ptr<Ranks> share_gpu(const Ranks::Store& store, int rank, int size,
                                        const RankOptions& options) {
  ::setenv("NCCL_HOSTID", ("rank " + std::to_string(rank)).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  ::setenv("NCCL_ALGO", "Ring", 1);
  ::setenv("NCCL_PROTO", "Simple", 1);
  return make_nccl_ranks(store, rank, size, 0, options);
}

/// Whether share_gpu() can work, as another process finds out.
inline bool can_share_gpu() {
  if (!has_nccl()) return false;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(torch::cuda::is_available() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) std::fprintf(stderr, "\n*** skipped: no GPU. NCCL was NOT tested. ***\n\n");
  return status == 0;
}

class RankProcesses {
 public:
  /// body(ranks, store) runs in `size` processes and returns the numbers to tell. Each process then
  /// stays until the object is destroyed, so that its end disturbs nobody.
  using Body = std::function<std::vector<float>(Ranks& ranks, const Ranks::Store& store)>;
  RankProcesses(int size, const Body& body, const RankOptions& options = loopback(),
                const MakeRanks& make = make_gloo_ranks) {
    for (int rank = 0; rank < size; ++rank) {
      int ends[2];
      if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(ends[0]);
        run(rank, size, body, options, make, ends[1]);
      }
      ::close(ends[1]);
      children_.push_back({.pid = child, .end = ends[0]});
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (const Child& child : children_) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      ::close(child.end);
    }
  }

  /// Waits for the rank's numbers. There are none if its body threw or did not end. Once a rank.
  [[nodiscard]] std::vector<float> told(int rank) const {
    std::vector<float> numbers;
    float number = 0;
    while (::read(children_.at(static_cast<size_t>(rank)).end, &number, sizeof number) ==
           sizeof number)
      numbers.push_back(number);
    return numbers;
  }

 private:
  struct Child {
    pid_t pid;
    int end;
  };

  [[noreturn]] void run(int rank, int size, const Body& body, const RankOptions& options,
                        const MakeRanks& make, int end) const {
    std::unique_ptr<Ranks> ranks;  // Lives on while the process stays.
    try {
      at::set_num_threads(1);
      const std::string path = folder_ / "store";
      const Ranks::Store store = c10::make_intrusive<c10d::FileStore>(path, -1);
      ranks = make(store, rank, size, options);
      const std::vector<float> numbers = body(*ranks, store);
      const size_t bytes = numbers.size() * sizeof(float);
      if (::write(end, numbers.data(), bytes) != static_cast<ssize_t>(bytes)) ::_exit(2);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    }
    ::close(end);
    while (true) ::pause();
  }

  TemporaryFolder folder_;
  std::vector<Child> children_;
};

}  // namespace fl::test
