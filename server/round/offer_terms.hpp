// SPDX-License-Identifier: Apache-2.0
// What the offers of a version say to all clients alike. Any thread.
#pragma once

#include "proto/wire.pb.h"
#include "server/run/run_plan.hpp"
#include "server/versions/checkpoints.hpp"
#include "shared/secure/messages.hpp"

#include <span>

namespace fl::server {

/// An offer without what is for one client: task, seed, codec, time, reference, evaluation.
/// `losses`: as RunPlan::work_of() has them.
[[nodiscard]] wire::Offer common_offer(const RunPlan& plan, const ModelVersion& base,
                                       std::span<const double> losses);
/// The digest of the values that a version's offers train from, which members of a masked run bind
/// their keys to. Blocking. Errors: those of reading them.
[[nodiscard]] Result<secure::Public> digest_of_values(const ModelVersion& version,
                                                      const Layout& layout);

}  // namespace fl::server
