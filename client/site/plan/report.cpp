// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/report.hpp"

#include "client/site/plan/rank_load.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

namespace fl::site {

namespace {

const char* name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    default: return "full";
  }
}

const char* name_of(PlanPrecision precision) {
  switch (precision) {
    case PlanPrecision::bf16: return "bf16";
    case PlanPrecision::fp16: return "fp16";
    default: return "fp32";
  }
}

const char* name_of(HookLoss loss) {
  switch (loss) {
    case HookLoss::none: return "nothing";
    case HookLoss::rounding: return "rounds";
    case HookLoss::feedback: return "error feedback";
    default: return "another method";
  }
}

HookAdvice advice_of(const PlanReport& report) {
  if (report.plans.front().misfit.empty())
    return advise_hooks(report.plans, report.shape, report.machines, report.training.precision,
                        report.code_bytes_s);
  HookAdvice advice;
  advice.text =
      "No plan fits: take more GPUs, GPUs with more memory, a shorter sequence or a smaller model.";
  return advice;
}

void write_head(std::string& out, const PlanReport& report) {
  const ModelShape& shape = report.shape;
  const SiteMachines& site = report.machines;
  const std::string experts =
      shape.experts == 0 ? ""
                         : fmt::format(", {} experts of which a token uses {} (and {} parameters)",
                                       shape.experts, shape.top, in_count(shape.active));
  fmt::format_to(
      std::back_inserter(out), "{} parameters: {} layers, hidden size {}, {} heads{}{}\n",
      in_count(shape.parameters), shape.layers, shape.hidden, shape.heads, experts,
      shape.is_assumed ? " (GPT's proportions; or give --layers, --hidden, --heads)" : "");
  fmt::format_to(
      std::back_inserter(out),
      "a step of {} sequences of {} tokens in {}, on {} GPUs, {} a node, {} of {} usable\n\n",
      report.training.batch, shape.sequence, name_of(report.training.precision), site.gpus,
      std::min(site.gpus, site.gpus_per_node), in_bytes(site.usable_bytes()),
      in_bytes(site.memory_bytes));
}

void write_plans(std::string& out, const PlanReport& report) {
  const auto at = std::back_inserter(out);
  fmt::format_to(
      at,
      "{:<24} {:>5} {:>3} {:>3} {:>3} {:>3} {:>5} {:<9} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>8} "
      "{:>8}\n",
      "plan", "dp", "tp", "cp", "ep", "pp", "micro", "recompute", "memory", "step", "compute",
      "bubble", "passes", "dp", "sent");
  int row = 0;
  for (const Plan& plan : report.plans) {
    if (!plan.misfit.empty() || row++ == report.rows_max) break;
    const Division& how = plan.division;
    fmt::format_to(
        at,
        "{:<24} {:>5} {:>3} {:>3} {:>3} {:>3} {:>5} {:<9} {:>8} {:>8}  {:>8} {:>8} {:>8} {:>8} "
        "{:>8}\n",
        how.family(), how.dp, how.tp, how.cp, how.ep, how.pp, how.micro_batch,
        name_of(how.recompute), in_bytes(plan.memory_bytes), in_seconds(plan.step_s),
        in_seconds(plan.compute_s + plan.host_s), in_seconds(plan.bubble_s),
        in_seconds(plan.tensor_s + plan.context_s + plan.expert_s + plan.pipeline_s),
        in_seconds(plan.exposed_s),
        in_bytes(plan.tensor_bytes + plan.context_bytes + plan.expert_bytes + plan.pipeline_bytes +
                 plan.data_sent()));
  }
  if (row > 0)
    out +=
        "memory: of a GPU. passes: what tp, cp, ep and pp send. dp: what the computation does not "
        "hide. sent: by a GPU in a step.\n";
}

/// Names what a plan needs and this release's ranks lack; empty if they can train by it.
std::string lacks(const Division& how, const ModelShape& shape) {
  if (shape.vocabulary % how.tp == 0) return "";
  return fmt::format("a way to divide a vocabulary of {} by {}", shape.vocabulary, how.tp);
}

/// The load of a rank of this release by a plan that it does not lack, with the activations. Its
/// ranks keep the inputs of divided layers whole.
RankLoad load_of(const Plan& plan, const PlanReport& report) {
  const Division& how = plan.division;
  const ModelShape& shape = report.shape;
  // Both ends of a pipeline have the embedding of the vocabulary.
  const double embedding = how.pp > 1 ? real(shape.vocabulary * shape.hidden) : 0;
  const double dense = how.dense_of(shape) + embedding * (1 - 1 / real(how.pp)) / real(how.tp);
  RankShares shares{.zero = how.ep > 1 ? std::max(1, how.zero) : how.zero,
                    .ranks = how.sharers(),
                    .offload = how.offload,
                    .recomputes = how.recompute == Recompute::full,
                    .precision = report.training.precision,
                    .microbatches = plan.microbatches};
  const double units = real(shape.layers) / real(how.pp);
  RankLoad load = rank_load(dense, how.dense_of(shape) / units, shares);
  if (shape.experts > 0) {
    shares.ranks = how.replicas();
    const double experts = how.experts_of(shape);
    const RankLoad more = rank_load(experts, experts / units, shares);
    load.on_gpu += more.on_gpu;
    load.on_host += more.on_host;
    load.sent += more.sent;
  }
  const double in_flight = microbatches_in_flight(how.stages(), plan.microbatches);
  const double layers =
      how.recompute == Recompute::full ? 1 : real(shape.layers) / real(how.pp) * in_flight;
  const double whole_inputs =
      2 * layers / real(how.cp) *
      layer_activation_bytes(shape, how.micro_batch, 1, Recompute::full, report.training.precision);
  load.on_gpu += plan.activation_bytes + whole_inputs * (1 - 1 / real(how.tp));
  // Values between stages, and the gradients of keys and values, travel in fp32.
  const double narrow = 4 / parameter_bytes(report.training.precision).weights;
  const double of_gradients = how.recompute == Recompute::full ? 2.0 / 8 : 2.0 / 6;
  const double keys_back = plan.context_bytes * of_gradients;
  load.sent += plan.tensor_bytes + plan.context_bytes + keys_back * (narrow - 1) +
               plan.expert_bytes + plan.pipeline_bytes * narrow;
  return load;
}

bool fits(const RankLoad& load, const SiteMachines& machines) {
  const double of_node = load.on_host * real(std::min(machines.gpus, machines.gpus_per_node));
  const bool fits_host = machines.host_memory_bytes == 0 || of_node <= machines.host_memory_bytes;
  return load.on_gpu <= machines.usable_bytes() && fits_host;
}

/// The flags by which ranks train so, of fl-client and, for what all clients share, of fl-server.
/// Selective recomputation, of attention's scores alone, needs no flag: the kernels of
/// scaled_dot_product_attention() never keep them.
std::string flags_of(const Plan& plan, const SiteMachines& machines, PlanPrecision precision) {
  const Division& how = plan.division;
  std::string flags = "fl-client";
  if (const std::int64_t ranks = how.dp * how.tp * how.cp * how.pp; ranks > 1) {
    flags += fmt::format(" --site (or --ranks {}) --parallel dp={}", ranks, how.dp);
    if (how.tp > 1) flags += fmt::format(",tp={}", how.tp);
    if (how.cp > 1) flags += fmt::format(",cp={}", how.cp);
    if (how.ep > 1) flags += fmt::format(",ep={}", how.ep);
    if (how.pp > 1) flags += fmt::format(",pp={}", how.pp);
    if (how.tp > 1) flags += " --sequence-parallel";
    const GroupShape group = expert_group(machines, how);
    if (group.local > 1 && group.nodes > 1) flags += " --expert-parallel two-hops";
    if (how.pp > 1) flags += fmt::format(" --pipeline {}", pipeline_text(how.stages()));
    flags += fmt::format(" --zero {}", how.zero);
  }
  if (how.offload) flags += " --offload optimizer";
  flags += fmt::format(" --recompute {} --precision {}",
                       how.recompute == Recompute::full ? "full" : "none", name_of(precision));
  if (how.sharers() > 1 && precision != PlanPrecision::fp32)
    flags += fmt::format(" --hook {}", name_of(precision));
  return flags + fmt::format("; fl-server --batch-size {} --accumulate {}", how.micro_batch,
                             plan.microbatches);
}

/// The text for what a rank takes and sends.
std::string text_of(const RankLoad& load) {
  std::string takes = in_bytes(load.on_gpu) + " of a GPU";
  if (load.on_host > 0) takes += ", and as a part of the host's memory " + in_bytes(load.on_host);
  if (load.sent > 0) takes += fmt::format(", and sends {} a step", in_bytes(load.sent));
  return takes;
}

/// The fastest plan that ranks of this release can train by; nothing if there is none.
std::optional<Plan> plan_for_ranks(const PlanReport& report) {
  return search_plan(report.shape, report.machines, report.training, [&](const Plan& plan) {
    return lacks(plan.division, report.shape).empty() &&
           fits(load_of(plan, report), report.machines);
  });
}

/// Why ranks of this release can't train by the first plan, and the flags for one by which they
/// can.
void write_flags(std::string& out, const PlanReport& report) {
  const auto at = std::back_inserter(out);
  const Plan& first = report.plans.front();
  const std::string family = first.division.family();
  if (const std::string what = lacks(first.division, report.shape); !what.empty()) {
    fmt::format_to(at, "\n{} is arithmetic only: ranks of this release lack {}.\n", family, what);
  } else if (const RankLoad load = load_of(first, report); !fits(load, report.machines)) {
    fmt::format_to(at,
                   "\n{}: a rank of this release, whose weights are fp32, takes {}: too much.\n",
                   family, text_of(load));
  }
  const auto plan = plan_for_ranks(report);
  if (!plan) {
    out += "\nRanks of this release can train by none of the plans that fit.\n";
    return;
  }
  fmt::format_to(at, "\nfor {}: {}\nA rank of this release, whose weights are fp32, takes {}.\n",
                 plan->division.family(),
                 flags_of(*plan, report.machines, report.training.precision),
                 text_of(load_of(*plan, report)));
}

void write_misfits(std::string& out, const PlanReport& report) {
  bool is_first = true;
  for (const Plan& plan : report.plans) {
    if (plan.misfit.empty()) continue;
    if (std::exchange(is_first, false)) out += "\ndoes not fit\n";
    const Division& how = plan.division;
    const std::string what = plan.memory_bytes < 1e17
                                 ? fmt::format("{} (dp {}, tp {}, cp {}, ep {}, pp {})",
                                               how.family(), how.dp, how.tp, how.cp, how.ep, how.pp)
                                 : how.family();
    fmt::format_to(std::back_inserter(out), "{:<46} {}\n", what, plan.misfit);
  }
}

void write_hooks(std::string& out, const Plan& plan, const std::vector<HookResult>& hooks) {
  const auto at = std::back_inserter(out);
  fmt::format_to(at, "\n{:<24} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n",
                 "hook, " + plan.division.family(), "bits", "sent", "links", "coding", "step",
                 "saved", "loses");
  for (const HookResult& result : hooks) {
    const double saved = std::abs(result.saved_s) < 5e-7 ? 0 : result.saved_s;
    fmt::format_to(at, "{:<24} {:>6.2f} {:>9} {:>9} {:>9} {:>9} {:>9}  {}\n", result.hook->spec,
                   result.bits, in_bytes(result.sent_bytes), in_seconds(result.link_s),
                   in_seconds(result.coding_s), in_seconds(result.step_s),
                   (saved < 0 ? "-" : "") + in_seconds(std::abs(saved)),
                   name_of(result.hook->loss));
  }
}

nlohmann::ordered_json as_json(const Plan& plan, const PlanReport& report) {
  const Division& how = plan.division;
  nlohmann::ordered_json row{{"plan", how.family()}, {"fits", plan.misfit.empty()}};
  if (!plan.misfit.empty()) row["reason"] = plan.misfit;
  if (plan.step_s == 0) return row;
  row.update({{"dp", how.dp},
              {"tp", how.tp},
              {"cp", how.cp},
              {"ep", how.ep},
              {"pp", how.pp},
              {"pipeline", pipeline_text(how.stages())},
              {"zero", how.zero},
              {"offload", how.offload},
              {"micro_batch", how.micro_batch},
              {"microbatches", plan.microbatches},
              {"recompute", name_of(how.recompute)},
              {"memory_bytes", plan.memory_bytes},
              {"state_bytes", plan.state.on_gpu()},
              {"activation_bytes", plan.activation_bytes},
              {"host_bytes", plan.host_bytes},
              {"tensor_sent_bytes", plan.tensor_bytes},
              {"context_sent_bytes", plan.context_bytes},
              {"expert_sent_bytes", plan.expert_bytes},
              {"pipeline_sent_bytes", plan.pipeline_bytes},
              {"data_sent_bytes", plan.data_sent()},
              {"step_s", plan.step_s},
              {"compute_s", plan.compute_s},
              {"bubble_s", plan.bubble_s},
              {"tensor_s", plan.tensor_s},
              {"context_s", plan.context_s},
              {"expert_s", plan.expert_s},
              {"pipeline_s", plan.pipeline_s},
              {"data_s", plan.gradients_s + plan.weights_s},
              {"data_exposed_s", plan.exposed_s},
              {"host_s", plan.host_s}});
  if (const std::string what = lacks(how, report.shape); !what.empty()) {
    row["lacks"] = what;
    return row;
  }
  const RankLoad load = load_of(plan, report);
  row["flags"] = flags_of(plan, report.machines, report.training.precision);
  row["rank_bytes"] = load.on_gpu;
  row["rank_host_bytes"] = load.on_host;
  row["rank_sent_bytes"] = load.sent;
  row["rank_fits"] = fits(load, report.machines);
  return row;
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  std::string out;
  write_head(out, report);
  const HookAdvice advice = advice_of(report);
  if (report.plans.front().misfit.empty()) {
    write_plans(out, report);
    write_flags(out, report);
  }
  write_misfits(out, report);
  if (!advice.hooks.empty()) write_hooks(out, report.plans[advice.plan], advice.hooks);
  return out + "\n" + advice.text + "\n";
}

std::string plan_json(const PlanReport& report) {
  const ModelShape& shape = report.shape;
  const HookAdvice advice = advice_of(report);
  nlohmann::ordered_json all{{"model",
                              {{"parameters", shape.parameters},
                               {"layers", shape.layers},
                               {"hidden", shape.hidden},
                               {"heads", shape.heads},
                               {"experts", shape.experts},
                               {"active", shape.active},
                               {"sequence", shape.sequence},
                               {"is_assumed", shape.is_assumed}}},
                             {"plans", nlohmann::ordered_json::array()},
                             {"hooks", nlohmann::ordered_json::array()}};
  for (const Plan& plan : report.plans) all["plans"].push_back(as_json(plan, report));
  for (const HookResult& result : advice.hooks) {
    all["hooks"].push_back({{"hook", result.hook->spec},
                            {"bits", result.bits},
                            {"sent_bytes", result.sent_bytes},
                            {"link_s", result.link_s},
                            {"coding_s", result.coding_s},
                            {"step_s", result.step_s},
                            {"saved_s", result.saved_s},
                            {"loses", name_of(result.hook->loss)}});
  }
  if (const auto plan = plan_for_ranks(report)) all["for_ranks"] = as_json(*plan, report);
  all["hooks_plan"] = report.plans[advice.plan].division.family();
  all["advice"] = advice.text;
  return json_text(all) + "\n";
}

}  // namespace fl::site
