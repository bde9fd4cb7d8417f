// SPDX-License-Identifier: Apache-2.0
// How the experts of a transformer's blocks are divided over ranks that have other tokens, which go
// to the ranks of their experts and back (expert parallelism). Lepikhin et al., "GShard", ICLR
// 2021, section 3; in two hops: Rajbhandari et al., "DeepSpeed-MoE", ICML 2022, section 5.2. Pure
// arithmetic; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/params/model_spec.hpp"

#include <cstdint>
#include <string_view>

namespace fl {

/// How tokens go from rank to rank.
enum class ExpertWay {
  direct,    // Each rank sends to each other one.
  two_hops,  // First inside a machine, to the rank that sends to the same number on others: between
             // machines go fewer and larger messages, with as many bytes.
};

struct ExpertDivision {
  std::int64_t ranks = 1;  // They have as many experts each, the first rank the first ones.
  ExpertWay way = ExpertWay::direct;
};

/// "direct" or "two-hops". Errors: invalid_input.
[[nodiscard]] Result<ExpertWay> parse_expert_way(std::string_view text);

/// Errors: invalid_input for a model whose experts can't be divided so, with the number that does
/// not fit.
[[nodiscard]] Result<void> check_experts(const ModelSpec& spec, std::string_view model,
                                         const ExpertDivision& division);

}  // namespace fl
