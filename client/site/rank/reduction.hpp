// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group reduce their gradients: the hook of --hook, the topology of --topology,
// which may be measured, and the size of the pieces.
#pragma once

#include "client/site/measured_choices.hpp"
#include "client/site/rank/gradient_hook.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/ranks.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace fl::site {

/// The hook of --hook, if it goes with that --topology. Any thread. Errors: invalid_input.
[[nodiscard]] Result<ParsedHook> check_reduction(const std::string& hook,
                                                 const std::string& topology);

struct Reduction {
  std::unique_ptr<GradientHook> hook;
  const HookRow& row;            // The hook's row of the table.
  std::size_t bucket_bytes = 0;  // Gradients are reduced in pieces of this size.
};
/// Makes it for a group and a model of `model_bytes`, and measures what the group's options leave
/// open and `choices` does not have. A collective, with the same `choices` on all ranks. Throws
/// RankFailure. Errors: invalid_input, corrupt.
[[nodiscard]] Result<Reduction> make_reduction(const GroupOptions& group, std::size_t model_bytes,
                                               MeasuredChoices& choices, Ranks& ranks);

}  // namespace fl::site
