// SPDX-License-Identifier: Apache-2.0
// Predicts examples with a built-in model, and writes the results as a table for users. Any thread.
#pragma once

#include "client/learn/builtin_file.hpp"
#include "client/learn/data/data.hpp"
#include "client/learn/learn_options.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace fl {

/// Takes the outputs of some examples, spec.outputs fp32 values of each: logits of the classes, or
/// values in the model's own scale. Of text it takes text_outputs values for each window of a piece
/// (windows_in()): the sum of the cross-entropies of the tokens that are predicted, in nats. Called
/// in the order of the examples.
inline constexpr std::size_t text_outputs = 1;
using TakeOutputs = std::function<Result<void>(std::span<const float> outputs)>;

/// Gives the outputs of the model for the examples that are held out to `take`, in batches, in the
/// order of the data. Of `options` it uses device and threads. Errors: invalid_input for a model
/// that predicts nothing, for data that do not fit it (check_fit_to_predict()), for a
/// missing device and for a program without libtorch; those of load_torch_trainer()
/// (torch_library.hpp); internal if libtorch itself fails; those of `take`.
[[nodiscard]] Result<void> predict(const LearnOptions& options, const BuiltinModel& model,
                                   const LocalData& data, const TakeOutputs& take);

/// Writes outputs as a CSV table: a row for each example, in the order of the data.
///
///   row,class,p_no,p_yes     a classification: the class of the largest output, and the
///                            probability of each class (softmax)
///   row,pressure             a regression: values in the targets' own unit
///   row,predictions,loss,perplexity   a language: of each piece the tokens that are predicted,
///                            their mean cross-entropy in nats, and the power of e to it
///
/// A set whose examples have names has these in place of `row`. Rows count from 1. Classes and
/// values that the data name no names for have their numbers. `model` and `set` must outlive it.
/// One thread.
class PredictionTable {
 public:
  PredictionTable(const BuiltinModel& model, const DataSet& set);

  /// The first line.
  [[nodiscard]] std::string header() const;
  /// The lines of the next examples.
  [[nodiscard]] std::string lines_of(std::span<const float> outputs);
  [[nodiscard]] std::uint32_t rows() const { return rows_; }

 private:
  [[nodiscard]] std::string next_name();
  [[nodiscard]] std::string lines_of_texts(std::span<const float> outputs);
  [[nodiscard]] std::string class_name(std::size_t number) const;
  [[nodiscard]] std::string value_name(std::size_t number) const;
  void put_classes(std::string& line, std::span<const float> logits) const;
  void put_values(std::string& line, std::span<const float> values) const;

  const BuiltinModel& model_;
  const DataSet& set_;
  std::span<const float> means_;  // Means of targets; empty if the model does not scale them.
  std::span<const float> variances_;
  std::uint32_t rows_ = 0;
  std::uint32_t windows_ = 0;  // Those of the next row's piece that were there already,
  double loss_ = 0;            // and the sum of their losses.
};

}  // namespace fl
