// SPDX-License-Identifier: Apache-2.0
// How the tensors of a transformer are divided over ranks that compute each layer together (tensor
// parallelism): the table that modules, loading, sums, norms, writing and moments go by. Shoeybi et
// al., "Megatron-LM", 2019, section 3; with divided tokens: Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", MLSys 2023, section 4.2.2. Pure
// arithmetic; any thread.
#pragma once

#include "client/learn/piece.hpp"
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

/// The shape of what a rank has of a tensor.
[[nodiscard]] std::vector<std::int64_t> part_shape(const Layout::Tensor& tensor,
                                                   const TensorDivision& division);

/// A rank's vector of a model: it has its parts of the tensors, one behind the other in the
/// layout's order. Norms and some biases are on all ranks, with the same values.
struct LayersPart {
  std::vector<Piece> pieces;  // All of it.
  std::vector<Piece> owned;   // Without what the first rank has, too: over all ranks each element
                              // is owned once.
  std::vector<Piece> summed;  // Where a rank's gradient is that of its own tokens only.
};
[[nodiscard]] LayersPart part_of_model(const Layout& layout, const TensorDivision& division,
                                       std::int64_t rank);

}  // namespace fl
