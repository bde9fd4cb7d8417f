// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/comm_hook.hpp"

#include "shared/base/error.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <optional>
#include <unordered_map>
#include <utility>

namespace fl {

namespace {

/// The stream on which hooks work on a GPU, the same one for all buckets: what a hook keeps from
/// bucket to bucket needs no other order. Nothing on a CPU, which queues nothing.
class HookStream {
 public:
  explicit HookStream(torch::Device device) : device_(device) {
    if (!device.is_cpu())
      stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  /// For work of another thread that begins after what this thread has queued.
  using Event = std::shared_ptr<c10::Event>;
  [[nodiscard]] Event mark() const {
    if (!stream_) return nullptr;
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    return event;
  }
  /// While the guard lives, the calling thread uses the stream, after the mark.
  [[nodiscard]] std::unique_ptr<c10::StreamGuard> enter(const Event& event) const {
    if (!stream_) return nullptr;
    event->block(*stream_);
    return std::make_unique<c10::StreamGuard>(*stream_);
  }

 private:
  torch::Device device_;
  std::optional<c10::Stream> stream_;
};

/// Reduces the bucket on the group's device, which may be another one than the gradient's.
void reduce_there(GradientHook& hook, Bucket& bucket, Ranks& ranks) {
  const torch::Tensor gradient = bucket.gradient;
  bucket.gradient = gradient.to(ranks.device());  // The same one, if it is there.
  hook.reduce(bucket, ranks);
  if (!bucket.gradient.is_same(gradient)) gradient.copy_(bucket.gradient);
  bucket.gradient = gradient;
}

class CommHook final : public c10d::CommHookInterface {
 public:
  CommHook(GradientHook& hook, Conductor& conductor, const std::vector<torch::Tensor>& parameters,
           StepTimes& times)
      : hook_(hook),
        conductor_(conductor),
        times_(times),
        stream_(parameters.empty() ? torch::kCPU : parameters.front().device()) {
    for (const torch::Tensor& parameter : parameters)
      index_.emplace(parameter.unsafeGetTensorImpl(), index_.size());
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& given) override {
    times_.bucket_ready();
    auto bucket = std::make_shared<Bucket>(described(given));
    const torch::Device device = bucket->gradient.device();
    std::vector<torch::Device> devices;
    if (!device.is_cpu()) devices.push_back(device);
    auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), std::move(devices));
    // Completing the future must happen on the hook's stream, so it is a part of the work.
    conductor_.start(
        [this, bucket, future, mark = stream_.mark()](Ranks& ranks) {
          const auto guard = stream_.enter(mark);
          const auto begin = StepTimes::Clock::now();
          reduce_there(hook_, *bucket, ranks);
          times_.reduced(bucket->index, begin);
          future->markCompleted(bucket->gradient);
        },
        [future](const std::exception_ptr& error) {
          if (error) future->setErrorIfNeeded(error);
        });
    return future;
  }

  torch::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  [[nodiscard]] Bucket described(c10d::GradBucket& given) const {
    Bucket bucket{.index = given.getIndex(),
                  .is_last = given.isLast(),
                  .gradient = given.getBufferRef(),
                  .parts = {}};
    std::int64_t offset = 0;
    for (const torch::Tensor& parameter : given.getParameters()) {
      const auto found = index_.find(parameter.unsafeGetTensorImpl());
      FL_ASSERT(found != index_.end());
      bucket.parts.push_back({.parameter = static_cast<std::int64_t>(found->second),
                              .offset = offset,
                              .shape = parameter.sizes().vec()});
      offset += parameter.numel();
    }
    FL_ASSERT(offset == bucket.gradient.numel());
    return bucket;
  }

  GradientHook& hook_;
  Conductor& conductor_;
  StepTimes& times_;
  HookStream stream_;
  std::unordered_map<const void*, std::size_t> index_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_comm_hook(
    GradientHook& hook, Conductor& conductor, const std::vector<torch::Tensor>& parameters,
    StepTimes& times) {
  return std::make_unique<CommHook>(hook, conductor, parameters, times);
}

}  // namespace fl
