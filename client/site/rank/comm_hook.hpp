// SPDX-License-Identifier: Apache-2.0
// Gradient hooks as communication hooks of c10d's Reducer, the machine behind PyTorch's
// DistributedDataParallel.
#pragma once

#include "client/site/rank/conductor.hpp"
#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/step_times.hpp"

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

namespace fl::site {

using BucketStarted = std::function<void(const std::shared_ptr<Bucket>&)>;

/// For Reducer::register_comm_hook(). `parameters` is the model's list; the Reducer has these very
/// tensors. A bucket is queued as soon as its gradients are there, and the backward pass goes on.
/// If a collective fails, loss.backward() throws the RankFailure. Hook, conductor
/// and `times` must outlive the Reducer, but the Reducer must outlive what is queued; the hook runs
/// on the conductor's thread. `started` is called with each bucket before it is queued, on the
/// thread of the backward pass. When that pass is over, the bucket has what the hook made of it.
[[nodiscard]] std::unique_ptr<c10d::CommHookInterface> make_comm_hook(
    GradientHook& hook, Conductor& conductor, const std::vector<torch::Tensor>& parameters,
    StepTimes& times, BucketStarted started);

}  // namespace fl::site
