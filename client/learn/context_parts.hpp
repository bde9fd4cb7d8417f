// SPDX-License-Identifier: Apache-2.0
// How the tokens of a text are divided over ranks that compute a transformer's attention together
// (context parallelism), so that none of them has the whole context. Liu et al., "Ring Attention
// with Blockwise Transformers for Near-Infinite Context", ICLR 2024; the two chunks of a rank, by
// which all have as much work: Llama 3, "The Llama 3 Herd of Models", 2024, section 3.3.2; heads in
// place of tokens: Jacobs et al., "DeepSpeed Ulysses", 2023. Pure arithmetic; any thread.
#pragma once

#include "client/learn/tensor_parts.hpp"
#include "shared/base/error.hpp"
#include "shared/params/model_spec.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace fl {

/// How the queries of a rank meet the keys and values of all.
enum class ContextWay {
  ring,     // These go round, from rank to rank.
  gather,   // Each rank gets those of all.
  ulysses,  // For the attention each rank has some heads, of all tokens.
};

struct ContextDivision {
  std::int64_t ranks = 1;  // They have each text together.
  ContextWay way = ContextWay::ring;
};

/// "ring", "gather" or "ulysses". Errors: invalid_input.
[[nodiscard]] Result<ContextWay> parse_context_way(std::string_view text);

/// Errors: invalid_input for a model whose context can't be divided so, with the number that does
/// not fit. `layers`: the ranks that have the model's layers together.
[[nodiscard]] Result<void> check_context(const ModelSpec& spec, std::string_view model,
                                         const ContextDivision& division,
                                         const TensorDivision& layers);

/// The numbers of the chunks of equal length that a rank has of a text, in its order; all ranks
/// have as many.
[[nodiscard]] std::vector<std::int64_t> chunks_of(const ContextDivision& division,
                                                  std::int64_t rank);
/// The places in a context of so many tokens that a rank has, in its order.
[[nodiscard]] std::vector<std::int64_t> places_of(const ContextDivision& division,
                                                  std::int64_t rank, std::int64_t context);

}  // namespace fl
