// SPDX-License-Identifier: Apache-2.0
// Compiled against NCCL where libtorch has its CUDA half and nccl.h is found (FL_HAS_NCCL). No test
// runs it yet, because no machine of the tests has two GPUs.
#include "client/site/rank/ranks.hpp"

#ifdef FL_HAS_NCCL
#include <c10/cuda/CUDAFunctions.h>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#endif

namespace fl {

#ifdef FL_HAS_NCCL

bool has_nccl() { return true; }

std::unique_ptr<Ranks> make_nccl_ranks(Ranks::Store store, int rank, int size, int device,
                                       const RankOptions& options) {
  // Otherwise libtorch's watchdog ends the process when another rank fails.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  try {
    store->setTimeout(options.timeout);
    const torch::Device cuda(torch::kCUDA, static_cast<c10::DeviceIndex>(device));
    c10::cuda::set_device(cuda.index());
    const auto nccl = c10d::ProcessGroupNCCL::Options::create();
    nccl->timeout = options.timeout;
    nccl->config.blocking = 0;
    const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, nccl);
    backend->eagerConnectSingleDevice(cuda);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL,
                      c10::intrusive_ptr<c10d::Backend>(backend));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return std::make_unique<Ranks>(
        std::move(group), cuda, std::move(store), options.timeout,
        [options, device](Ranks::Store other, int other_rank, int other_size) {
          return make_nccl_ranks(std::move(other), other_rank, other_size, device, options);
        });
  } catch (const std::exception& error) {
    throw RankFailure("making a group of " + std::to_string(size) + " ranks", -1, error.what());
  }
}
std::string nccl_version() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}


#else

bool has_nccl() { return false; }

std::unique_ptr<Ranks> make_nccl_ranks(Ranks::Store, int, int size, int, const RankOptions&) {
  throw RankFailure("making a group of " + std::to_string(size) + " ranks", -1,
                    "this program was built without NCCL; build it with FL_TORCH_CUDA=1 where "
                    "nccl.h is installed, or use gloo");
}

#endif

}  // namespace fl
std::string nccl_version() { return ""; }

