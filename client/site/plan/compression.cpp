// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/compression.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl {

namespace {

/// Bits for each value of low-rank hooks: a layer's matrices h x 3h, h x h, h x 4h and 4h x h
/// become two factors each, (4 + 2 + 5 + 5) h rank values of fp32 for 12 h^2 (Vogels 2019).
double low_rank_bits(double hidden, double rank) { return 32 * 16 * rank / (12 * hidden); }

/// Bits for each value of one square matrix of all values: 2 sqrt(n) rank for n.
double batched_bits(double values, double rank) { return 32 * 2 * rank / std::sqrt(values); }

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

}  // namespace

std::vector<HookRow> hook_rows(double hidden, double gradient_bits) {
  using enum HookExchange;
  using enum HookLoss;
  std::vector<HookRow> rows{{"allreduce", gradient_bits, all_reduce, none, 0}};
  if (gradient_bits > 16) {
    rows.push_back({"bf16", 16, all_reduce, rounding, 0.1});
    rows.push_back({"fp16", 16, all_reduce, rounding, 0.1});
  }
  rows.insert(rows.end(), {{"quantize:8", 8, gather, rounding, 0.5},
                           {"qsgd:7", 3.3, parts, rounding, 1},
                           {"topk:0.01", 0.01 * 64, gather, feedback, 1},
                           {"randk:0.01", 0.01 * 32, all_reduce, feedback, 0.3},
                           {"sign", 1, parts, feedback, 0.5},
                           {"onebit-adam", 1, parts, method, 0.5},
                           {"powersgd:4", low_rank_bits(hidden, 4), all_reduce, feedback, 0.5},
                           {"codec:ecuq:4", 4, parts, rounding, 1},
                           {"codec:ecuq:2+ef", 2, parts, feedback, 1},
                           {"codec:ecuq:1+ef", 1, parts, feedback, 1},
                           {"codec:ecuq:0.25+ef", 0.25, parts, feedback, 1},
                           {"post-local-sgd", gradient_bits, seldom, method, 0}});
  return rows;
}

std::vector<HookResult> compare_hooks(const Plan& plan, const ModelShape& shape,
                                      const SiteMachines& machines, PlanPrecision precision,
                                      double code_bytes_s) {
  const Division& how = plan.division;
  std::vector<HookResult> results;
  if (how.dp == 1 || how.zero > 1) return results;
  const double values = shape.parameters / real(how.tp * how.pp);
  const Links links{data_group(machines, how), how.dp, machines.intra_bytes_s,
                    machines.inter_bytes_s};
  auto rows = hook_rows(real(shape.hidden), 8 * parameter_bytes(precision).gradients);
  rows.push_back({"batched-powersgd:4", batched_bits(values, 4), HookExchange::all_reduce,
                  HookLoss::feedback, 0.5});
  for (HookRow& row : rows) {
    HookResult& result = results.emplace_back();
    const auto [sent, seconds] = exchange(links, row.exchange, values * row.bits / 8);
    // ZeRO-1 only scatters what it has reduced, and gathers weights instead: half of it.
    const double half = how.zero == 1 && row.exchange != HookExchange::gather ? 0.5 : 1.0;
    result.sent_bytes = sent * half;
    result.link_s = seconds * half;
    result.coding_s = row.passes * 4 * values / code_bytes_s;
    // Coding takes the GPU's time, so that it hides nothing and is not hidden.
    const double before = exposed_seconds(plan.gradients_s, gradient_window(plan));
    const double after = exposed_seconds(result.link_s, gradient_window(plan)) + result.coding_s;
    result.step_s = plan.step_s - before + after;
    result.saved_s = plan.step_s - result.step_s;
    result.hook = std::move(row);
  }
  std::ranges::stable_sort(results, {}, &HookResult::step_s);
  return results;
}

std::string compression_advice(const Plan& plan, const std::vector<HookResult>& hooks) {
  const double exposed = exposed_seconds(plan.gradients_s, gradient_window(plan));
  if (hooks.empty())
    return plan.division.dp == 1
               ? "There is one replica: no gradients are reduced, and no hook is needed."
               : fmt::format("{} reduces gradients by itself: communication hooks do not apply.",
                             plan.division.family());
  const auto best = std::ranges::find_if(
      hooks, [](const HookResult& result) { return result.hook.loss != HookLoss::method; });
  const std::string reduction = fmt::format(
      "Reducing the gradients takes {}, of which {} are not hidden ({:.1f} % of a step)",
      in_seconds(plan.gradients_s), in_seconds(exposed), 100 * exposed / plan.step_s);
  if (best == hooks.end() || best->saved_s < worth_saving * plan.step_s)
    return reduction + ": no compression pays, use allreduce.";
  std::string text =
      fmt::format("{}: compression pays, {} saves {} a step ({:.0f} %).", reduction,
                  best->hook.name, in_seconds(best->saved_s), 100 * best->saved_s / plan.step_s);
  const double left = exposed_seconds(best->link_s, gradient_window(plan));
  if (left > 0.3 * best->step_s)
    text +=
        " The link still takes most of a step: let the nodes be sites of their own that train "
        "many steps between exchanges (fl-server --strategy diloco).";
  return text;
}

}  // namespace fl
