// SPDX-License-Identifier: Apache-2.0
// CallOrder: before a collective, whether all ranks of a group are about to make the same one.
// Ranks that enter different collectives wait for each other until their time limit, or read each
// other's bytes as what they are not.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fl::site {

/// One thread at a time. All ranks of the group have one.
class CallOrder {
 public:
  /// `await` waits for the end of a call, and throws if it fails.
  using Await = std::function<void(c10d::Work&)>;
  CallOrder(c10::intrusive_ptr<c10d::Backend> backend, torch::Device device,
            std::chrono::milliseconds timeout, Await await);
  /// Gathers a digest of each rank's calls so far and the next one, 24 bytes of each. `bytes`: of
  /// the tensor, 0 where ranks may have unlike ones. Throws runtime_error, which names two ranks
  /// and their calls, if they differ.
  void check(const char* operation, std::uint64_t bytes);

 private:
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const torch::Device device_;
  const std::chrono::milliseconds timeout_;
  const Await await_;
  std::uint64_t digest_ = 0;  // It covers all calls so far, in their order.
  std::int64_t calls_ = 0;
};

}  // namespace fl::site
