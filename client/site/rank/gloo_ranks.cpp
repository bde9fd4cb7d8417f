// SPDX-License-Identifier: Apache-2.0
// The only file that includes c10d's header for Gloo. The headers of Gloo itself are those in
// client/site/rank/gloo.
#include "client/site/rank/ranks.hpp"

#include <c10/util/env.h>
#include <csignal>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

namespace fl::site {

namespace {

void prepare_process() {
  // Gloo writes to sockets of ranks that may have died.
  std::signal(SIGPIPE, SIG_IGN);
  // c10d's flight recorder adds each new group to a map without a lock: two groups of one process
  // that begin at the same time crashed it. Whoever sets the variable can have the recorder.
  c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/false);
}

/// c10d's Gloo can't be aborted. This one closes the connections, upon which everything that waits
/// for them ends, and c10d's threads with it: nothing is received into a tensor any more.
class AbortableGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void abort() override {
    for (const auto& context : contexts_) {
      for (int rank = 0; rank < getSize(); ++rank) {
        // Each of Gloo's devices that c10d makes is one over TCP.
        auto* const pair = static_cast<::gloo::transport::tcp::Pair*>(context->getPair(rank).get());
        if (pair != nullptr) pair->signalExceptionExternal("the group was aborted");
      }
    }
  }
};

auto device_for(const RankOptions& options) {
  if (!options.interface.empty())
    return c10d::ProcessGroupGloo::createDeviceForInterface(options.interface);
  if (!options.address.empty())
    return c10d::ProcessGroupGloo::createDeviceForHostname(options.address);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

std::unique_ptr<Ranks> make_gloo_ranks(Ranks::Store store, int rank, int size,
                                       const RankOptions& options) {
  static std::once_flag is_prepared;
  std::call_once(is_prepared, prepare_process);
  try {
    store->setTimeout(options.timeout);
    const auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices.push_back(device_for(options));
    const auto backend = c10::make_intrusive<AbortableGloo>(store, rank, size, gloo);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      c10::intrusive_ptr<c10d::Backend>(backend));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    auto ranks = std::make_unique<Ranks>(
        std::move(group), torch::Device(torch::kCPU), std::move(store), options,
        [options](Ranks::Store other, int other_rank, int other_size) {
          return make_gloo_ranks(std::move(other), other_rank, other_size, options);
        });
    if (options.shares_memory) ranks->share_memory();
    if (options.checks_order) ranks->check_order();
    return ranks;
  } catch (const std::exception& error) {
    throw RankFailure("making a group of " + std::to_string(size) + " ranks", -1, reason_of(error));
  }
}

}  // namespace fl::site
