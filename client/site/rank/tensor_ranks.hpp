// SPDX-License-Identifier: Apache-2.0
// TensorRanks: a TensorGroup whose ranks talk over c10d.
#pragma once

#include "client/learn/torch/tensor_group.hpp"
#include "client/site/rank/ranks.hpp"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace fl::site {

/// The thread that trains, and that of a backward pass while it lasts.
class TensorRanks final : public TensorGroup {
 public:
  explicit TensorRanks(TensorDivision division) : division_(division) {}

  /// From now on these are the ranks, division().ranks of them; null: there is no group.
  void enter(std::unique_ptr<Ranks> ranks) { ranks_ = std::move(ranks); }

  [[nodiscard]] TensorDivision division() const override { return division_; }
  [[nodiscard]] std::int64_t rank() const override { return ranks_->rank(); }
  void sum(torch::Tensor& values) override;
  void maximum(torch::Tensor& values) override;
  [[nodiscard]] torch::Tensor gather(const torch::Tensor& values) override;
  [[nodiscard]] torch::Tensor sum_parts(const torch::Tensor& parts) override;

 private:
  const TensorDivision division_;
  std::unique_ptr<Ranks> ranks_;
};

}  // namespace fl::site
