// SPDX-License-Identifier: Apache-2.0
// PassGroup: ranks that take each pass of a model together. Those of a TensorGroup have each a part
// of every layer (tensor parallelism), those of a ContextGroup a part of the tokens of every text
// (context parallelism), those of a PipelineGroup some of the layers (pipeline parallelism), those
// of an ExpertGroup some of the experts, and passes of their own (expert parallelism).
// client/site/rank implements them. Only the files of fl_client_learn_torch
// and of the site's ranks include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/context_parts.hpp"
#include "client/learn/expert_parts.hpp"
#include "client/learn/pipeline_parts.hpp"
#include "client/learn/tensor_parts.hpp"
#include "client/learn/torch/put_off.hpp"

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace fl {

/// The thread that trains, and that of a backward pass while it lasts. All ranks make the same
/// calls in the same order, with tensors of the same shapes. All functions need a group of ranks,
/// and throw SyncFailure.
class PassGroup {
 public:
  virtual ~PassGroup() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;

  /// Makes the values their sum, or their maximum, over the ranks. Contiguous; all ranks get the
  /// same bits.
  virtual void sum(torch::Tensor& values) = 0;
  virtual void maximum(torch::Tensor& values) = 0;
  /// Returns the values of all ranks, in their order: [ranks, ...].
  [[nodiscard]] virtual torch::Tensor gather(const torch::Tensor& values) = 0;
  /// Sends parts[r] to rank r, and returns what the ranks have sent to this one, in their order.
  /// parts: [ranks, ...].
  [[nodiscard]] virtual torch::Tensor exchange(const torch::Tensor& parts) = 0;
  /// `parts`: what this rank adds to the values of each: [ranks, ...]. Returns the sum of what all
  /// add to those of this one, made in rank order and in fp32, in the parts' format.
  [[nodiscard]] virtual torch::Tensor sum_parts(const torch::Tensor& parts) = 0;
  /// Sends the values to the next rank, the last one's to the first, and returns those of the rank
  /// before.
  [[nodiscard]] virtual torch::Tensor pass_on(const torch::Tensor& values) = 0;
};

class TensorGroup : public PassGroup {
 public:
  using Division = TensorDivision;
  /// Without a group of ranks, too.
  [[nodiscard]] virtual TensorDivision division() const = 0;
};

class ContextGroup : public PassGroup {
 public:
  using Division = ContextDivision;
  /// Without a group of ranks, too.
  [[nodiscard]] virtual ContextDivision division() const = 0;
};

/// The numbers of a tensor of integers, in its order.
[[nodiscard]] inline std::vector<std::int64_t> numbers_of(const torch::Tensor& values) {
  const torch::Tensor host = values.to(torch::kCPU, torch::kInt64).contiguous();
  const auto* const first = host.const_data_ptr<std::int64_t>();
  return {first, first + host.numel()};
}

class ExpertGroup : public PassGroup {
 public:
  using Division = ExpertDivision;
  /// Without a group of ranks, too.
  [[nodiscard]] virtual ExpertDivision division() const = 0;
  /// Sends rows to the ranks, in their order: to[r] of them to rank r. Returns those that came, in
  /// the ranks' order too: from[r] of rank r. rows: [n, width], with the same width on all ranks.
  [[nodiscard]] virtual torch::Tensor exchange_rows(const torch::Tensor& rows,
                                                    const std::vector<std::int64_t>& to,
                                                    const std::vector<std::int64_t>& from) = 0;
};

/// Names a tensor that goes between two stages: the values of a microbatch, which the earlier one
/// sends, or their gradient, which the later one sends back.
struct StageValues {
  bool is_gradient = false;
  std::int64_t stage = 0;  // The later one of the two.
  std::int64_t microbatch = 0;
};

class PipelineGroup : public PassGroup {
 public:
  using Division = PipelineDivision;
  /// Without a group of ranks, too.
  [[nodiscard]] virtual PipelineDivision division() const = 0;
  /// Where weights' gradients wait, if the schedule puts them off; else null.
  [[nodiscard]] PutOff* put_off() {
    return division().schedule == PipelineSchedule::zero_bubble ? &put_off_ : nullptr;
  }

  /// Begins to send values, and returns. They must not change until finish(), or until the gradient
  /// has come of which they are the values. Contiguous.
  virtual void send(const StageValues& what, const torch::Tensor& values) = 0;
  /// Waits for values, which become `values`: for so long as all stages together may take.
  virtual void receive(const StageValues& what, torch::Tensor& values) = 0;
  /// Returns when all that was sent has arrived.
  virtual void finish() = 0;
  /// Makes the values of the first and the last rank their sum. These two call it.
  virtual void sum_of_ends(torch::Tensor& values) = 0;

 private:
  PutOff put_off_;
};

/// The ranks with which one takes its passes.
struct PassGroups {
  TensorGroup* tensor = nullptr;      // Null: it has whole layers.
  ContextGroup* context = nullptr;    // Null: it has whole texts.
  PipelineGroup* pipeline = nullptr;  // Null: it has all layers.
  ExpertGroup* experts = nullptr;     // Null: it has all experts of its layers.

  [[nodiscard]] PutOff* put_off() const {
    return pipeline == nullptr ? nullptr : pipeline->put_off();
  }
};

}  // namespace fl
