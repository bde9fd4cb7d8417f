// SPDX-License-Identifier: Apache-2.0
// The local optimizers: SGD as in PyTorch, Adam (Kingma and Ba 2015, algorithm 1) and AdamW
// (Loshchilov and Hutter 2019, algorithm 2). A step treats each element by itself, so a stretch of
// a model's vector has the same bits after it, whether it is alone or a part of the whole. On the
// host our own kernel computes it (kernels/kernels.hpp), with the same bits on all CPUs and for any
// number of threads; on a GPU libtorch's operations do, which round in other places.
#pragma once

#include "client/learn/torch/kept_moments.hpp"
#include "client/learn/trainer.hpp"

#include <torch/types.h>

#include <cstdint>

namespace fl {

/// Makes the steps of one round. One thread.
class Optimizer {
 public:
  /// The vectors that a step reads and changes: fp32 [n]. Weights and gradient are on the device
  /// that trains. Steps are computed where `start` and `correction` lie, and the moments lie there,
  /// too: on that device, or on the host (ZeRO-Offload: Ren et al., USENIX ATC 2021, section 3).
  /// Then gradient and weights go there and back in each step.
  struct Vectors {
    torch::Tensor weights;     // A step changes them.
    torch::Tensor gradient;    // A step uses it, and sets it to zero.
    torch::Tensor start;       // The weights at the beginning of the round.
    torch::Tensor correction;  // Added to each gradient; may be undefined.
  };
  /// Begins with zeros for moments, or with the `kept` ones of these elements.
  Optimizer(const TrainSettings& settings, Vectors vectors, const Moments& kept);

  void step();
  [[nodiscard]] Moments moments() const;

 private:
  void step_on_host();
  void step_on_device();
  void step_by_momentum();
  void step_by_moments();

  const TrainSettings settings_;
  Vectors vectors_;
  torch::Tensor first_;   // Momentum, or Adam's first moment.
  torch::Tensor second_;  // Adam's second moment.
  std::uint64_t steps_ = 0;
  torch::Tensor weights_there_;  // On the host, if the device is another one: of a step.
  torch::Tensor gradient_there_;
};

}  // namespace fl
