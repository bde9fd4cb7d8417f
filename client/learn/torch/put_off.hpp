// SPDX-License-Identifier: Apache-2.0
// PutOff: gradients of weights that are computed after those of the inputs, for which another stage
// of a pipeline waits. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2. Only
// the files of fl_client_learn_torch and its tests include this header, because it brings
// libtorch's headers.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace fl {

/// The thread that trains, and that of a backward pass while it lasts.
class PutOff {
 public:
  using Work = std::vector<std::function<void()>>;

  /// From now on backward passes put work off. Call take() after each. What a pass that ended early
  /// has left is forgotten.
  void begin();
  /// The work that has been put off since begin(); from now on nothing is.
  [[nodiscard]] Work take();

  /// Does the work, now or when it is taken.
  void add(std::function<void()> work);

 private:
  bool is_on_ = false;
  Work work_;
};

/// A dense layer: x [n, length, inputs], weight [outputs, inputs], bias [outputs] or undefined.
/// Work of `put_off` adds the weights' gradient to weight.grad(), with the bits of libtorch's own
/// layer, which this is for a null.
[[nodiscard]] torch::Tensor dense_layer(PutOff* put_off, const torch::Tensor& x,
                                        const torch::Tensor& weight, const torch::Tensor& bias);

}  // namespace fl
