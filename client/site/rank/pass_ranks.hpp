// SPDX-License-Identifier: Apache-2.0
// PassRanks: a PassGroup whose ranks talk over c10d.
#pragma once

#include "client/learn/torch/pass_group.hpp"
#include "client/site/rank/ranks.hpp"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace fl::site {

/// `Group`: TensorGroup, ContextGroup, PipelineGroup or ExpertGroup. The thread that trains, and
/// that of a backward pass while it lasts.
template <class Group>
class PassRanks : public Group {
 public:
  using Division = typename Group::Division;
  explicit PassRanks(Division division) : division_(division) {}

  /// From now on these are the ranks, division().ranks of them; null: there is no group.
  void enter(std::unique_ptr<Ranks> ranks) { ranks_ = std::move(ranks); }
  /// Whether more than one rank takes a pass.
  [[nodiscard]] bool is_divided() const { return division_.ranks > 1; }

  [[nodiscard]] Division division() const override { return division_; }
  [[nodiscard]] std::int64_t rank() const override { return ranks_->rank(); }
  void sum(torch::Tensor& values) override;
  void maximum(torch::Tensor& values) override;
  [[nodiscard]] torch::Tensor gather(const torch::Tensor& values) override;
  [[nodiscard]] torch::Tensor exchange(const torch::Tensor& parts) override;
  [[nodiscard]] torch::Tensor sum_parts(const torch::Tensor& parts) override;
  [[nodiscard]] torch::Tensor pass_on(const torch::Tensor& values) override;

 protected:
  [[nodiscard]] Ranks& ranks() const { return *ranks_; }

 private:
  [[nodiscard]] torch::Tensor exchange_there(const torch::Tensor& there);

  const Division division_;
  std::unique_ptr<Ranks> ranks_;
};

using TensorRanks = PassRanks<TensorGroup>;
using ContextRanks = PassRanks<ContextGroup>;

}  // namespace fl::site
