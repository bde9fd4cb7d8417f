// SPDX-License-Identifier: Apache-2.0
// The layouts and initial weights of the built-in models. With these a server needs no libtorch to
// know a model's shapes, and a client can check that its libtorch module has the same layout. Pure
// functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/column_summary.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/metric.hpp"
#include "shared/params/write_values.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// The prefix of a model of users' own; all other models are built in.
inline constexpr std::string_view custom_prefix = "custom:";

/// The layout of a built-in model (model_spec.hpp). Statistics (layout.hpp) come after the
/// parameters; those of a scaled model are input.running_mean, input.running_var,
/// target.running_mean and target.running_var, and come last. Any other name is invalid_input; the
/// message lists the models.
[[nodiscard]] Result<Layout> builtin_layout(std::string_view model);

/// Deterministic initial weights, with the same bits on every machine. Weights and biases are
/// uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)), PyTorch's default for Linear and Conv2d, and
/// embeddings uniform with a deviation of 0.02, from Philox(seed, tensor index, element). The
/// biases of a model with experts are 0. A BatchNorm, a LayerNorm and a scaling begin as the
/// identity. "synthetic:N" begins with zeros.
[[nodiscard]] Result<std::vector<float>> builtin_initial_weights(std::string_view model,
                                                                 std::uint64_t seed);
/// Makes the initial weights piece by piece, in order. Errors also: those of `take`.
[[nodiscard]] Result<void> make_builtin_initial_weights(std::string_view model, std::uint64_t seed,
                                                        const WriteValues& take);

/// The number of values that a model scales: its inputs, then its targets. A trainer of such a
/// model summarises each over its training examples. 0 for a model that scales none, and for an
/// unknown one.
[[nodiscard]] std::uint64_t builtin_summaries(std::string_view model);
/// Writes means and variances into the scaling tensors of a model's weights. A value that nobody
/// has, or that is always the same, is not scaled: variance 1. A variance beyond fp32's normal
/// numbers becomes the nearest of these; one that is small beside the rounding of the mean to fp32
/// grows by the square of that. `model` must be built in, and
/// `summaries` have builtin_summaries(model) elements.
void write_scaling(std::string_view model, std::span<const ColumnSummary> summaries,
                   std::span<float> weights);

/// What the trainers of a built-in model measure besides the loss: accuracy, and AUROC of two
/// classes; mean absolute error and R2; or perplexity, and of a model with experts how unlike their
/// loads are. Nothing for "synthetic:N", which has no data.
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
