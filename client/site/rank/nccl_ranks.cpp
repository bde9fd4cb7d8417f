// SPDX-License-Identifier: Apache-2.0
// Compiled against NCCL where libtorch has its CUDA half and nccl.h is found (FL_HAS_NCCL).
#include "client/site/rank/ranks.hpp"

#include <algorithm>

#ifdef FL_HAS_NCCL
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#endif

namespace fl::site {

std::vector<NcclVariable> nccl_variables(std::chrono::milliseconds timeout) {
  const auto whole = std::chrono::ceil<std::chrono::seconds>(timeout).count();
  return {
      // By default (3) libtorch's watchdog ABORTS THE PROCESS when a collective fails or takes too
      // long. With 0 the call that waits for it throws, and Ranks aborts the communicator.
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", true},
      // By default (1) a second thread ABORTS THE PROCESS when the watchdog itself has hung for
      // TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (8 minutes), as it may in a call of the driver. The agent
      // notices ranks that hang, and ends them. With 0 the heartbeat's time has no effect.
      {"TORCH_NCCL_ENABLE_MONITORING", "0", true},
      // After a failure the watchdog waits for the second thread, which there is not, to write what
      // it knows, and the group's end waits for the watchdog: a minute in which this rank answers
      // nobody.
      {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0", true},
      {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1", true},
      // How long a call of a communicator that does not block may take: making and ending it too.
      // By default 30 minutes, whatever the group's time-out.
      {"TORCH_NCCL_NONBLOCKING_TIMEOUT", std::to_string(std::max<std::int64_t>(1, whole)), true},
      // NVLink's switches add up in an order of their own, which may differ from run to run. For
      // those who don't need the same bits again: 2 is NCCL's default.
      {"NCCL_NVLS_ENABLE", "0", false},
      // The rest is as by default, unless somebody sets it who looks for a fault. Ranks look for
      // the end of a call themselves.
      {"TORCH_NCCL_BLOCKING_WAIT", "0", false},
      // Not needed: the agent tells the other ranks of an error.
      {"TORCH_NCCL_PROPAGATE_ERROR", "0", false},
      // A communicator that blocks can't be aborted while it is made, or while it connects to a
      // rank for the first time: the thread is inside NCCL, without a time limit. libtorch no
      // longer makes non-blocking ones by itself since NCCL 2.26 hung at random (pytorch#154055);
      // its own access to them became safe for threads later (pytorch#170424), and our ranks' tests
      // have run so with NCCL 2.28. Options::config says this too, and takes precedence.
      {"TORCH_NCCL_USE_COMM_NONBLOCKING", "1", false},
  };
}

#ifdef FL_HAS_NCCL

bool has_nccl() { return true; }

std::string nccl_version() { return c10d::getNcclVersion(); }

std::unique_ptr<Ranks> make_nccl_ranks(Ranks::Store store, int rank, int size, int device,
                                       const RankOptions& options) {
  for (const NcclVariable& variable : nccl_variables(options.timeout))
    c10::utils::set_env(variable.name, variable.value.c_str(), variable.overwrites);
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
    auto ranks = std::make_unique<Ranks>(
        std::move(group), cuda, std::move(store), options,
        [options, device](Ranks::Store other, int other_rank, int other_size) {
          return make_nccl_ranks(std::move(other), other_rank, other_size, device, options);
        });
    if (options.checks_order) ranks->check_order();
    return ranks;
  } catch (const std::exception& error) {
    throw RankFailure("making a group of " + std::to_string(size) + " ranks", -1, reason_of(error));
  }
}

#else

bool has_nccl() { return false; }

std::string nccl_version() { return ""; }

std::unique_ptr<Ranks> make_nccl_ranks(Ranks::Store, int, int size, int, const RankOptions&) {
  throw RankFailure("making a group of " + std::to_string(size) + " ranks", -1,
                    "this program was built without NCCL; build it with FL_TORCH_CUDA=1 where "
                    "nccl.h is installed, or use gloo");
}

#endif

}  // namespace fl::site
