// SPDX-License-Identifier: Apache-2.0
// Whether a data set is one that a model can train on, and what its client tells of its values.
// Pure functions; any thread.
#pragma once

#include "client/learn/data/data.hpp"
#include "shared/base/error.hpp"
#include "shared/params/column_summary.hpp"
#include "shared/params/model_spec.hpp"

#include <string_view>
#include <vector>

namespace fl {

/// Checks kind, sizes, classes and targets of a client's data. `model` is the text of `spec`.
/// Errors: invalid_input, which says what the model takes and what the data have.
[[nodiscard]] Result<void> check_fit(const ModelSpec& spec, std::string_view model,
                                     const LocalData& data);

/// Checks what of this a model needs to predict: the inputs, and that the data name no more classes
/// than it has. Errors: as above.
[[nodiscard]] Result<void> check_fit_to_predict(const ModelSpec& spec, std::string_view model,
                                                const LocalData& data);

/// check_fit(), and whether fp32 can hold mean and variance of each value that the model scales,
/// over the training examples. Errors: invalid_input, which names the value's column, how large the
/// values are, and the remedy. The log warns where fp32 holds a mean too coarsely. A model that is
/// not built in fits all data.
[[nodiscard]] Result<void> check_values(std::string_view model, const LocalData& data);

/// The examples of a client's part that a model sees: a language model sees several in a piece.
[[nodiscard]] std::uint64_t examples_in(const ModelSpec& spec, const DataSet& set,
                                        std::span<const std::uint32_t> chosen);

/// Summaries of the values that the model scales (builtin_summaries()), over the training examples.
/// The data must fit.
[[nodiscard]] std::vector<ColumnSummary> summarise(const ModelSpec& spec, const LocalData& data);

/// Value `output` of what is to be predicted for an example of a regression: a target or, without
/// targets, the label.
[[nodiscard]] double target_of(const DataSet& set, std::uint32_t example, std::uint32_t output);

/// The windows of a piece of text with so many tokens. Each has `context` tokens to predict from,
/// or fewer at the end of the piece, and one more.
[[nodiscard]] std::uint32_t windows_in(std::uint32_t piece_tokens, std::int64_t context);

}  // namespace fl
