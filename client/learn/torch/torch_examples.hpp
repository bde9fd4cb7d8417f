// SPDX-License-Identifier: Apache-2.0
// The examples of one part of a client's data, as tensors, a batch at a time. The data stay where
// they are, in memory or in a mapped file; of a batch a copy is made. Only the files of
// fl_client_learn_torch include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/data/data.hpp"
#include "shared/params/model_spec.hpp"

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace fl {

/// On the device that trains.
struct Batch {
  /// fp32 [n, shape of an example]; of text int64 [n, context]. fp64 if the data set has offsets
  /// and the model scales its inputs, as it brings them to fp32 then.
  torch::Tensor inputs;
  torch::Tensor targets;  // int64 [n] classes; int64 [n, context] tokens; [n, outputs] values, of
                          // fp32 or fp64 by the rule above.
};

/// A target with this class is not predicted: it is behind the end of a piece of text.
inline constexpr std::int64_t no_target = -100;

/// Examples of a batch that is only measured or predicted, unless they are text.
inline constexpr std::int64_t evaluated_at_once = 500;

/// A batch of text that is only measured has so many tokens at most, and outputs.
inline constexpr std::int64_t tokens_evaluated_at_once = 8192;
inline constexpr std::int64_t outputs_evaluated_at_once = 1 << 26;

/// The examples of a batch that is only measured or predicted.
[[nodiscard]] inline std::int64_t evaluated_together(const ModelSpec& spec) {
  if (spec.task != ModelSpec::Task::language) return evaluated_at_once;
  const std::int64_t tokens =
      std::min(tokens_evaluated_at_once, outputs_evaluated_at_once / spec.outputs);
  return std::max<std::int64_t>(1, tokens / spec.input[0]);
}

/// On a GPU inputs of at most this size are kept in its memory; more are copied for each batch.
inline constexpr std::uint64_t resident_bytes_max = 4ull << 30;

/// Any thread; nothing changes.
class Examples {
 public:
  /// `all` must fit the model (check_fit()), or be null, and then `chosen` is empty.
  Examples(std::shared_ptr<const DataSet> all, std::span<const std::uint32_t> chosen,
           const ModelSpec& spec, torch::Device device);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  /// The number of terms of the mean loss: the examples or, of text, the tokens that are predicted.
  [[nodiscard]] std::int64_t predictions() const { return predictions_; }
  /// For a report: the number of predictions; nothing if each example is one.
  [[nodiscard]] std::optional<double> told_predictions() const {
    return context_ > 0 ? std::optional(static_cast<double>(predictions_)) : std::nullopt;
  }
  /// How many predictions the examples at these positions have.
  [[nodiscard]] std::int64_t predictions(const torch::Tensor& positions) const;
  /// `positions` is int64 [n] on the CPU, each from 0 to size() - 1.
  [[nodiscard]] Batch batch(const torch::Tensor& positions) const;
  /// Their Batch::inputs alone, of examples that are no text and may have no targets.
  [[nodiscard]] torch::Tensor inputs(const torch::Tensor& positions) const;
  /// The examples at positions [begin, begin + n).
  [[nodiscard]] Batch batch(std::int64_t begin, std::int64_t n) const {
    return batch(torch::arange(begin, begin + n, torch::kInt64));
  }

 private:
  /// An example: an index into the data set and, of text, the first token in that piece.
  struct Row {
    std::uint32_t example = 0;
    std::uint32_t begin = 0;
  };

  [[nodiscard]] std::int64_t predictions_of(const Row& row) const;
  [[nodiscard]] std::vector<Row> rows_at(const torch::Tensor& positions) const;
  [[nodiscard]] torch::Tensor gather(std::span<const Row> rows) const;
  [[nodiscard]] torch::Tensor targets_of(std::span<const Row> rows) const;
  [[nodiscard]] Batch text(std::span<const Row> rows) const;

  std::shared_ptr<const DataSet> all_;
  std::vector<Row> rows_;
  ModelSpec::Task task_;
  std::int64_t context_ = 0;  // Of text.
  std::int64_t outputs_;
  std::int64_t predictions_ = 0;
  torch::Device device_;
  torch::Tensor resident_;  // On a GPU, all inputs as they are stored; may be undefined.
  torch::Tensor offsets_;   // DataSet::input_offsets on the device; undefined without.
  torch::ScalarType input_type_ = torch::kFloat32;
  torch::ScalarType target_type_ = torch::kFloat32;
};

}  // namespace fl
