// SPDX-License-Identifier: Apache-2.0
// Whether compressing the reduction of gradients makes a plan's step shorter, for each
// communication hook: time saved on the links against time to code.
#pragma once

#include "client/site/hooks/hook_table.hpp"
#include "client/site/plan/search.hpp"

#include <string>
#include <vector>

namespace fl::site {

struct HookResult {
  const HookCost* hook = nullptr;  // In the table of hooks.
  double bits = 0;                 // On the wire, for each value.
  double sent_bytes = 0;           // By one GPU in a step, for gradients.
  double link_s = 0;               // On the links, hidden parts included.
  double coding_s = 0;             // Coding and decoding.
  double step_s = 0;               // The step with this hook.
  double saved_s = 0;              // Against the plan's step. Negative: the hook makes it longer.
};

/// A hook pays if it saves at least this part of a step.
inline constexpr double worth_saving = 0.02;

/// All hooks with this plan, the shortest step first. Empty if the plan reduces nothing, or if
/// hooks can't act on it (ZeRO-2 and 3, and expert parallelism, reduce by themselves).
/// `code_bytes_s`: fp32 gradient that a rank codes and decodes in a second.
[[nodiscard]] std::vector<HookResult> compare_hooks(const Plan& plan, const ModelShape& shape,
                                                    const SiteMachines& machines,
                                                    PlanPrecision precision, double code_bytes_s);

struct HookAdvice {
  std::size_t plan = 0;           // The index of the plan to take.
  std::vector<HookResult> hooks;  // The hooks with that plan.
  std::string text;               // The advice in two sentences.
};

/// The fastest of these plans with the fastest hook that keeps the method. It is the first plan
/// unless a hook makes another one faster by worth_saving: compression may make up for what another
/// plan spends to avoid a slow link. The first plan must fit.
[[nodiscard]] HookAdvice advise_hooks(const std::vector<Plan>& plans, const ModelShape& shape,
                                      const SiteMachines& machines, PlanPrecision precision,
                                      double code_bytes_s);

}  // namespace fl::site
