// SPDX-License-Identifier: Apache-2.0
// Queues work of the conductor's thread on a tensor that another thread, perhaps on a GPU, still
// computes.
#pragma once

#include "client/site/rank/conductor.hpp"

#include <ATen/core/ivalue.h>
#include <torch/types.h>
#include <functional>

namespace fl::site {

/// Queues `work`, which replaces `values` and returns what it has made of them, the value of the
/// future. The future must be waited for, or its error is lost. On a GPU the work runs on a stream
/// of the conductor's own, after what the calling thread has queued.
[[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> queue_tensor(
    Conductor& conductor, const torch::Tensor& values, std::function<torch::Tensor(Ranks&)> work);

}  // namespace fl::site
