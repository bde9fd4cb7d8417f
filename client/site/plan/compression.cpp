// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/compression.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace fl::site {

namespace {

struct Links {
  GroupShape group;
  std::int64_t dp;
  double intra, inter;
};

/// Bytes that one GPU sends, and seconds, if a vector is coded in `bytes`.
std::pair<double, double> exchange(const Links& links, HookExchange how, double bytes) {
  const auto [local, nodes] = links.group;
  if (how == HookExchange::gather)
    return {bytes * real(links.dp - 1),
            all_gather_seconds(bytes, local, nodes, links.intra, links.inter)};
  const double often = how == HookExchange::seldom ? 1.0 / post_local_steps : 1.0;
  return {often * all_reduce_bytes(bytes, links.dp),
          often * all_reduce_seconds(bytes, local, nodes, links.intra, links.inter)};
}

bool keeps_method(const HookResult& result) { return result.hook->loss != HookLoss::method; }

/// Says what a plan spends on its gradients if it has no hook.
std::string without_hook(const Plan& plan) {
  const std::string name = plan.division.family();
  if (plan.division.sharers() == 1)
    return fmt::format("With {} there is one replica, and no gradients are reduced.", name);
  if (plan.division.zero > 1 || plan.division.ep > 1)
    return fmt::format("{} reduces gradients by itself: communication hooks do not apply.", name);
  const double exposed = exposed_seconds(plan.gradients_s, gradient_window(plan));
  return fmt::format(
      "With {} the reduction of gradients takes {}, of which {} are not hidden ({:.1f} % of a "
      "step).",
      name, in_seconds(plan.gradients_s), in_seconds(exposed), 100 * exposed / plan.step_s);
}

}  // namespace

std::vector<HookResult> compare_hooks(const Plan& plan, const ModelShape& shape,
                                      const SiteMachines& machines, PlanPrecision precision,
                                      double code_bytes_s) {
  const Division& how = plan.division;
  std::vector<HookResult> results;
  if (how.sharers() == 1 || how.zero > 1 || how.ep > 1) return results;
  const double values = shape.parameters / real(how.tp * how.pp);
  const Links links{data_group(machines, how), how.sharers(), machines.intra_bytes_s,
                    machines.inter_bytes_s};
  const HookSizes sizes{.gradient_bits = 8 * parameter_bytes(precision).gradients,
                        .hidden = real(shape.hidden),
                        .values = values};
  const double before_s = exposed_seconds(plan.gradients_s, gradient_window(plan));
  for (const HookRow& row : hook_rows()) {
    for (const HookCost& cost : row.costs) {
      const double bits = cost.bits_of(sizes);
      const bool rounds_nothing =
          cost.exchange == HookExchange::all_reduce && cost.loss == HookLoss::rounding;
      if (rounds_nothing && bits >= sizes.gradient_bits) continue;
      HookResult& result = results.emplace_back(HookResult{.hook = &cost, .bits = bits});
      const auto [sent, seconds] = exchange(links, cost.exchange, values * bits / 8);
      // ZeRO-1 only scatters what it has reduced, and gathers weights instead: half of it.
      const double half = how.zero == 1 && cost.exchange != HookExchange::gather ? 0.5 : 1.0;
      result.sent_bytes = sent * half;
      result.link_s = seconds * half;
      result.coding_s = cost.passes * 4 * values / code_bytes_s;
      // Coding takes the GPU's time, so that it hides nothing and is not hidden.
      const double after = exposed_seconds(result.link_s, gradient_window(plan)) + result.coding_s;
      result.step_s = plan.step_s - before_s + after;
      result.saved_s = plan.step_s - result.step_s;
    }
  }
  std::ranges::stable_sort(results, {}, &HookResult::step_s);
  return results;
}

HookAdvice advise_hooks(const std::vector<Plan>& plans, const ModelShape& shape,
                        const SiteMachines& machines, PlanPrecision precision,
                        double code_bytes_s) {
  const double plain_s = plans.front().step_s;
  HookAdvice advice;
  advice.hooks = compare_hooks(plans.front(), shape, machines, precision, code_bytes_s);
  std::optional<HookResult> best;
  for (std::size_t at = 0; at < plans.size() && plans[at].misfit.empty(); ++at) {
    auto hooks = compare_hooks(plans[at], shape, machines, precision, code_bytes_s);
    const auto fastest = std::ranges::find_if(hooks, keeps_method);
    if (fastest == hooks.end() || fastest->step_s > plain_s * (1 - worth_saving)) continue;
    if (best && best->step_s <= fastest->step_s) continue;
    best = *fastest;
    advice.plan = at;
    advice.hooks = std::move(hooks);
  }
  const Plan& plan = plans[advice.plan];
  advice.text = without_hook(plans.front());
  if (!best) {
    if (!advice.hooks.empty()) advice.text += " No compression pays: use allreduce.";
    return advice;
  }
  advice.text += fmt::format(
      " Compression pays: {} with {} takes {} a step in place of {}. "
      "This is time only: what sends less may need more steps.",
      plan.division.family(), best->hook->spec, in_seconds(best->step_s), in_seconds(plain_s));
  if (exposed_seconds(best->link_s, gradient_window(plan)) > 0.3 * best->step_s)
    advice.text +=
        " The link still takes most of a step: let the nodes be sites of their own that train many "
        "steps between exchanges (fl-server --strategy diloco).";
  return advice;
}

}  // namespace fl::site
