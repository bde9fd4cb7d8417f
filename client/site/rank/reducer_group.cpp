// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/reducer_group.hpp"

#include "client/site/rank/queued_tensor.hpp"
#include "shared/base/error.hpp"

#include <utility>
#include <vector>

namespace fl::site {

namespace {

class QueuedWork final : public c10d::Work {
 public:
  explicit QueuedWork(c10::intrusive_ptr<c10::ivalue::Future> future)
      : Work(-1, c10d::OpType::ALLREDUCE), future_(std::move(future)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    future_->waitAndThrow();  // The conductor's calls have a deadline.
    return true;
  }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class ReducerGroup final : public c10d::ProcessGroup {
 public:
  ReducerGroup(int rank, int size, Conductor& conductor, StepTimes& times)
      : ProcessGroup(rank, size), conductor_(conductor), times_(times) {}

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    FL_ASSERT(tensors.size() == 1 && options.reduceOp == c10d::ReduceOp::SUM);
    auto future = queue_tensor(conductor_, tensors[0], [this, values = tensors[0]](Ranks& ranks) {
      const auto begin = StepTimes::Clock::now();
      torch::Tensor sums = values;
      on_device_of(ranks, sums, [&ranks](torch::Tensor& there) { ranks.sum(there); });
      times_.reduced_beside(begin);
      return sums;
    });
    return c10::make_intrusive<QueuedWork>(std::move(future));
  }

 private:
  Conductor& conductor_;
  StepTimes& times_;
};

}  // namespace

Ranks::Group make_reducer_group(int rank, int size, Conductor& conductor, StepTimes& times) {
  return c10::make_intrusive<ReducerGroup>(rank, size, conductor, times);
}

}  // namespace fl::site
