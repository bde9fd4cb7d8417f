// SPDX-License-Identifier: Apache-2.0
// What the offers of a version say to all clients alike. Pure; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "server/run/run_plan.hpp"
#include "server/versions/checkpoints.hpp"

#include <span>

namespace fl::server {

/// An offer without what is for one client: task, seed, codec, time, reference, evaluation.
/// `losses`: as RunPlan::work_of() has them.
[[nodiscard]] wire::Offer common_offer(const RunPlan& plan, const ModelVersion& base,
                                       std::span<const double> losses);

}  // namespace fl::server
