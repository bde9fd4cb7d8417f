// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/queued_tensor.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <memory>
#include <utility>
#include <vector>

namespace fl::site {

namespace {

/// Lets work of another thread begin after what this thread has queued on its GPU. That thread has
/// one stream for all its work, so what a hook keeps from bucket to bucket needs no other order.
/// Does nothing on a CPU, which queues nothing.
class Handover {
 public:
  explicit Handover(torch::Device device) : device_(device) {
    if (device.is_cpu()) return;
    event_ = std::make_shared<c10::Event>(device.type());
    event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  /// While the guard lives, the calling thread, always the same one, uses its stream.
  [[nodiscard]] std::unique_ptr<c10::StreamGuard> enter() const {
    if (!event_) return nullptr;
    thread_local const c10::Stream stream =
        c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
    event_->block(stream);
    return std::make_unique<c10::StreamGuard>(stream);
  }

 private:
  torch::Device device_;
  std::shared_ptr<c10::Event> event_;
};

}  // namespace

c10::intrusive_ptr<c10::ivalue::Future> queue_tensor(Conductor& conductor,
                                                     const torch::Tensor& values,
                                                     std::function<torch::Tensor(Ranks&)> work) {
  const torch::Device device = values.device();
  std::vector<torch::Device> devices;
  if (!device.is_cpu()) devices.push_back(device);
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
  // The future must be completed on the work's stream, so that is a part of the work.
  conductor.start(
      [future, work = std::move(work), handover = Handover(device)](Ranks& ranks) {
        const auto guard = handover.enter();
        future->markCompleted(work(ranks));
      },
      [future](const std::exception_ptr& error) {
        if (error) future->setErrorIfNeeded(error);
      });
  return future;
}

}  // namespace fl::site
