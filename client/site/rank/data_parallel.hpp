// SPDX-License-Identifier: Apache-2.0
// DataParallel: how ranks take their steps together. Gradients are reduced in buckets, from the
// last layers to the first, while the backward pass still computes those before: c10d's Reducer, as
// in PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020, section 3).
#pragma once

#include "client/learn/torch/step_sync.hpp"
#include "client/site/rank/ranks.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

namespace fl {

struct DataParallelOptions {
  std::string hook = "allreduce";
  std::size_t bucket_bytes = 4 << 20;  // It hid most of the communication where it was measured.
};

/// The thread that trains.
class DataParallel final : public StepSync {
 public:
  DataParallel() = default;

  /// From now on the steps are taken with these ranks; null: with none, and nothing may be called.
  void enter(std::shared_ptr<Ranks> ranks, const DataParallelOptions& options);

  [[nodiscard]] std::int64_t rank() const override { return ranks_->rank(); }
  [[nodiscard]] std::int64_t size() const override { return ranks_->size(); }
  void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) override;
  void before_backward(bool is_last) override;
  void broadcast(torch::Tensor& values) override { ranks_->broadcast(values, 0); }
  void sum(torch::Tensor& values) override { ranks_->sum(values); }

 private:
  void make_reducer(const std::vector<torch::Tensor>& parameters);

  std::shared_ptr<Ranks> ranks_;
  DataParallelOptions options_;
  std::unique_ptr<c10d::Reducer> reducer_;  // Made with the group's first step.
};

}  // namespace fl
