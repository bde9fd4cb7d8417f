// SPDX-License-Identifier: Apache-2.0
// The outputs of the built-in models, computed by libtorch. This header includes nothing of
// libtorch.
#pragma once

#include "client/learn/predictions.hpp"

namespace fl {

/// Does the work of predict() (predictions.hpp), for a model and data that it has checked. Outputs
/// are those that an evaluation of the same weights and examples in fp32 measures. Sets the number
/// of libtorch's threads for the whole process.
[[nodiscard]] Result<void> predict_by_torch(const LearnOptions& options, const BuiltinModel& model,
                                            const LocalData& data, const TakeOutputs& take);

}  // namespace fl
