// SPDX-License-Identifier: Apache-2.0
// How the tensors of a transformer are divided over ranks that compute each layer together (tensor
// parallelism) or have other layers (pipeline_parts.hpp) or experts (expert_parts.hpp): the table
// that modules, loading, sums, norms, writing and moments go by. Shoeybi et al., "Megatron-LM",
// 2019, section 3; with divided tokens: Korthikanti et al., "Reducing Activation Recomputation in
// Large Transformer Models", MLSys 2023, section 4.2.2. Pure arithmetic; any thread.
#pragma once

#include "client/learn/expert_parts.hpp"
#include "client/learn/piece.hpp"
#include "client/learn/pipeline_parts.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_spec.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace fl {

struct TensorDivision {
  std::int64_t ranks = 1;  // They have the layers together.
  /// Between the divided layers each rank has the tokens of a part of the context (sequence
  /// parallelism).
  bool divides_tokens = false;
};

/// Errors: invalid_input for a model that can't be divided so, with the number that does not fit.
[[nodiscard]] Result<void> check_division(const ModelSpec& spec, std::string_view model,
                                          const TensorDivision& division);

/// How a model's layers lie on ranks: in stages, of which each has its layers' tensors divided, and
/// the experts of these, each of which has its tensors divided in turn.
struct LayersDivision {
  TensorDivision tensors = {};
  PipelineDivision stages = {};
  ExpertDivision experts = {};
  [[nodiscard]] bool is_divided() const {
    return tensors.ranks > 1 || stages.ranks > 1 || experts.ranks > 1;
  }
};
/// A rank's numbers along these.
struct LayersPlace {
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  std::int64_t expert = 0;
};

/// Whether a tensor has a part for each expert, along its first dimension.
[[nodiscard]] bool is_of_experts(std::string_view tensor);
/// The shape of what a rank has of a tensor, if it has any of it.
[[nodiscard]] std::vector<std::int64_t> part_shape(const Layout::Tensor& tensor,
                                                   const LayersDivision& division);

/// A rank's vector of a model: it has its parts of the tensors, one behind the other in the
/// layout's order. Norms and some biases are on all ranks that have a layer, with the same values.
struct LayersPart {
  std::vector<Piece> pieces;  // All of it.
  std::vector<Piece> owned;   // Without what an earlier rank along tensors or stages has, too: over
                              // the ranks along these each element is owned once.
  std::vector<Piece> summed;  // Where a rank's gradient is that of its own tokens only.
  std::vector<Piece> tied;    // Where it lacks what the other end of the pipeline adds.
  std::int64_t elements = 0;
};
[[nodiscard]] LayersPart part_of_model(const Layout& layout, const LayersDivision& division,
                                       const LayersPlace& place);

}  // namespace fl
