// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/comm_hook.hpp"

#include "client/site/rank/queued_tensor.hpp"
#include "shared/base/error.hpp"

#include <unordered_map>
#include <utility>

namespace fl::site {

namespace {

/// Reduces the bucket on the group's device, which may be another one than the gradient's.
void reduce_there(GradientHook& hook, Bucket& bucket, Ranks& ranks) {
  torch::Tensor gradient = bucket.gradient;
  on_device_of(ranks, gradient, [&](torch::Tensor& there) {
    bucket.gradient = there;
    hook.reduce(bucket, ranks);
    there = bucket.gradient;
  });
  bucket.gradient = gradient;
}

class CommHook final : public c10d::CommHookInterface {
 public:
  CommHook(GradientHook& hook, Conductor& conductor, const std::vector<torch::Tensor>& parameters,
           StepTimes& times, BucketStarted started)
      : hook_(hook), conductor_(conductor), times_(times), started_(std::move(started)) {
    for (const torch::Tensor& parameter : parameters)
      index_.emplace(parameter.unsafeGetTensorImpl(), index_.size());
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& given) override {
    times_.bucket_ready();
    const auto bucket = std::make_shared<Bucket>(described(given));
    started_(bucket);
    return queue_tensor(conductor_, bucket->gradient, [this, bucket](Ranks& ranks) {
      const auto begin = StepTimes::Clock::now();
      reduce_there(hook_, *bucket, ranks);
      times_.reduced(bucket->index, begin);
      return bucket->gradient;
    });
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
  const BucketStarted started_;
  std::unordered_map<const void*, std::size_t> index_;
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> make_comm_hook(
    GradientHook& hook, Conductor& conductor, const std::vector<torch::Tensor>& parameters,
    StepTimes& times, BucketStarted started) {
  return std::make_unique<CommHook>(hook, conductor, parameters, times, std::move(started));
}

}  // namespace fl::site
