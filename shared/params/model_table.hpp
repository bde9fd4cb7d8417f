// The layouts of the built-in models, so that a server without libtorch knows their shapes, and a
// client can check that its module agrees. Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// "lenet" (NIID-Bench, 44,426 parameters for 28x28x1 and 10 classes), "cnn", "resnet8",
/// "resnet20", "mlp", "logistic", "synthetic:N". Anything else is invalid_input, naming what there
/// is. Statistics (layout.hpp) stand behind the parameters.
[[nodiscard]] Result<Layout> builtin_layout(std::string_view model);

/// Deterministic initial weights: for weights and biases U(-1/sqrt(fan_in), 1/sqrt(fan_in)), which
/// is PyTorch's default for Linear and Conv2d, from Philox(seed, tensor index, element), the same
/// bits on every machine; for a BatchNorm ones and zeros, as there; zeros for "synthetic:N".
[[nodiscard]] Result<std::vector<float>> builtin_initial_weights(std::string_view model,
                                                                 std::uint64_t seed);

/// One line per model for --help.
struct ModelRow {
  std::string_view name;
  std::string_view about;
};
[[nodiscard]] std::span<const ModelRow> builtin_models();
/// "lenet, cnn, …".
[[nodiscard]] std::string builtin_model_names();

}  // namespace fl
