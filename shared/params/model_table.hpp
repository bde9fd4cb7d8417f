// SPDX-License-Identifier: Apache-2.0
// The layouts and initial weights of the built-in models. With these a server needs no libtorch to
// know a model's shapes, and a client can check that its libtorch module has the same layout. Pure
// functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/metric.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// A model of users' own begins with this; all others are built in.
inline constexpr std::string_view custom_prefix = "custom:";

/// The layout of a built-in model: "lenet", "cnn", "resnet8", "resnet20", "mlp", "logistic" or
/// "synthetic:N". All but the last take images of 28x28x1 and have 10 classes. Statistics
/// (layout.hpp) come after the parameters. Any other name is invalid_input; the message lists the
/// models.
[[nodiscard]] Result<Layout> builtin_layout(std::string_view model);

/// Deterministic initial weights, with the same bits on every machine. Weights and biases are
/// uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for Linear and Conv2d, from
/// Philox(seed, tensor index, element). A BatchNorm begins with ones and zeros, as in PyTorch.
/// "synthetic:N" begins with zeros.
[[nodiscard]] Result<std::vector<float>> builtin_initial_weights(std::string_view model,
                                                                 std::uint64_t seed);

/// What the trainers of a built-in model measure besides the loss: "accuracy". Nothing for
/// "synthetic:N", which has no data.
[[nodiscard]] std::span<const MetricKind> builtin_metrics(std::string_view model);

/// A model's line in --help.
struct ModelRow {
  std::string_view name;
  std::string_view about;
};
[[nodiscard]] std::span<const ModelRow> builtin_models();
/// All names in one line: "lenet, cnn, …".
[[nodiscard]] std::string builtin_model_names();

}  // namespace fl
