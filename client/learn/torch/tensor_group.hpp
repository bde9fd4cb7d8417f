// SPDX-License-Identifier: Apache-2.0
// TensorGroup: the ranks that compute each layer of a model together, each with a part of its
// tensors (tensor parallelism). client/site/rank implements it. Only the files of
// fl_client_learn_torch and of the site's ranks include this header, because it brings libtorch's
// headers.
#pragma once

#include "client/learn/tensor_parts.hpp"

#include <torch/types.h>

#include <cstdint>

namespace fl {

/// The thread that trains, and that of a backward pass while it lasts. All ranks make the same
/// calls in the same order, with tensors of the same shapes. All but division() need a group of
/// ranks, and throw SyncFailure.
class TensorGroup {
 public:
  virtual ~TensorGroup() = default;
  [[nodiscard]] virtual TensorDivision division() const = 0;
  [[nodiscard]] virtual std::int64_t rank() const = 0;

  /// Makes the values their sum, or their maximum, over the ranks. Contiguous; all ranks get the
  /// same bits.
  virtual void sum(torch::Tensor& values) = 0;
  virtual void maximum(torch::Tensor& values) = 0;
  /// Returns the values of all ranks, in their order: [ranks, ...].
  [[nodiscard]] virtual torch::Tensor gather(const torch::Tensor& values) = 0;
  /// `parts`: what this rank adds to the values of each: [ranks, ...]. Returns the sum of what all
  /// add to those of this one, made in rank order and in fp32, in the parts' format.
  [[nodiscard]] virtual torch::Tensor sum_parts(const torch::Tensor& parts) = 0;
};

}  // namespace fl
