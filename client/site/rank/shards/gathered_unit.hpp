// SPDX-License-Identifier: Apache-2.0
// GatheredUnit: a unit of a model, or its experts, of which each rank has a part. Its parameters
// come together in a buffer while they are needed, and their gradients go to the ranks that have
// the parts. ZeRO stages 2 and 3: Rajbhandari et al., "ZeRO", SC 2020, section 5; the buffers that
// come and go: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.
#pragma once

#include "client/learn/precision.hpp"
#include "client/site/rank/conductor.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/rank/shards/cut.hpp"
#include "client/site/rank/step_times.hpp"

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl::site {

/// A rank's parts of all units, one behind the other, and how they go between ranks. The vectors
/// are fp32 [elements_of()], on the device that trains.
struct ShardedVectors {
  torch::Tensor weights;
  torch::Tensor gradient;
  std::int64_t gradient_parts = 1;               // The number of which gradients are the mean.
  torch::ScalarType exchange = torch::kFloat32;  // The format in which gradients travel.
};

/// Tensors of a unit that come and go together, and the formats in which a mixed pass reads them.
struct UnitTensors {
  std::vector<torch::Tensor> parameters;
  std::vector<NumberFormat> formats;
};

/// The thread that trains and that of the backward pass, one at a time. All ranks make the same
/// calls in the same order. Functions throw RankFailure. The conductor works on the buffers, so it
/// must have ended, or have been waited for, before the object ends.
class GatheredUnit {
 public:
  /// The tensors become views into a buffer, which has no memory at first; or, where there are no
  /// other ranks, into this rank's own part, which is all. `ranks`: those that have
  /// the parts, for the conductor's thread. `number`: the unit's.
  GatheredUnit(std::size_t number, UnitTensors tensors, const UnitCut& cut,
               const ShardedVectors& vectors, Ranks& ranks, Conductor& conductor, StepTimes& times);
  GatheredUnit(const GatheredUnit&) = delete;
  GatheredUnit& operator=(const GatheredUnit&) = delete;

  /// Begins to bring the parameters together, unless they are there or on their way. `is_mixed`:
  /// for a mixed pass, which rounds many of them to 16 bits before it uses them; then they travel
  /// so, and are rounded in the buffer as well.
  void gather_ahead(bool is_mixed);
  /// Returns when they are there.
  void gather(bool is_mixed);
  /// They are no longer needed: the buffer's memory is given back.
  void free();
  /// They are not those of the model any more, as there was a step.
  void outdate() { is_there_ = false; }

  /// A parameter has its gradient. Once all have one, they begin to go to the ranks that have the
  /// parts, which add them up in rank order, with the mean's bits of any order of arrival.
  void note_gradient();
  /// Whether all gradients of this backward pass have begun to go.
  [[nodiscard]] bool is_reduced() const { return left_ == 0; }
  /// A backward pass follows.
  void expect_gradients() { left_ = parameters_.size(); }
  /// Within a backward pass: waits until the gradients have arrived, if they are on their way, so
  /// that not too many are.
  void limit_sending();
  /// Returns when the gradients have arrived.
  void await_reduced();
  /// A pass has ended early, and the conductor has nothing to do any more: nothing goes on.
  void forget();

 private:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  void reduce();
  /// Brings all parts of the ranks into the buffer; on the conductor's thread.
  void bring(const torch::Tensor& full, bool is_rounded, Ranks& ranks);
  void bring_rounded(const torch::Tensor& full, Ranks& ranks);

  const std::size_t number_;
  std::vector<torch::Tensor> parameters_;
  const UnitCut cut_;
  torch::Tensor own_weights_;  // This rank's part: fp32 [part].
  torch::Tensor own_gradient_;
  const std::int64_t gradient_parts_;
  const torch::ScalarType exchange_;
  Ranks& group_;
  Conductor& conductor_;
  StepTimes& times_;
  const std::int64_t ranks_;                    // Those of group_.
  std::vector<std::vector<Segment>> segments_;  // How each rank's part travels in a mixed pass.
  std::int64_t segment_bytes_ = 0;              // The most of a rank, a multiple of 4.
  torch::Tensor full_;                          // The buffer: fp32 [ranks * part].
  bool is_there_ = false;
  bool is_rounded_ = false;  // The parameters, there or on their way, serve mixed passes only.
  Future gathering_;         // Null unless it goes on.
  Future reducing_;
  torch::Tensor
      sending_;  // The gradients under way: a GPU may read them after the host has gone on.
  std::size_t left_ = 0;  // Gradients that are missing in this backward pass.
};

}  // namespace fl::site
