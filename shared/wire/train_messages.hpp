// SPDX-License-Identifier: Apache-2.0
// The settings of local training as fields of an Offer, both ways, by the list in
// shared/algorithm/train_fields.hpp. Pure functions; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/algorithm/local_work.hpp"
#include "shared/base/error.hpp"

namespace fl {

/// Writes all settings. Other fields of the offer stay as they are.
void write_train_settings(const TrainSettings& settings, wire::Offer& offer);
/// Errors: invalid_input for the optimizer, which is the only setting that has a grammar, and for a
/// batch above limits::batch_size_max or limits::accumulate_max.
[[nodiscard]] Result<TrainSettings> read_train_settings(const wire::Offer& offer);

}  // namespace fl
