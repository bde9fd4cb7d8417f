// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>

namespace fl::site {

namespace {

/// The shape as far as one rank has it of each sequence.
ModelShape own_shape(const ModelShape& shape, const Division& how) {
  ModelShape own = shape;
  own.sequence /= how.cp;
  return own;
}

/// The part of a microbatch's computation that is the backward pass, with recomputation in it.
double backward_part(Recompute recompute) {
  return recompute == Recompute::full ? 3.0 / 4 : 2.0 / 3;
}

void add_memory(Plan& plan, const ModelShape& shape, const SiteMachines& machines,
                const PlanTraining& training) {
  const Division& how = plan.division;
  plan.state =
      state_memory(how.dense_of(shape), training.precision, how.zero, how.sharers(), how.offload);
  plan.state += state_memory(how.experts_of(shape), training.precision, how.zero, how.replicas(),
                             how.offload);
  plan.activation_bytes =
      stage_activation_bytes(own_shape(shape, how), how.micro_batch, plan.microbatches, how.tp,
                             how.stages(), how.recompute, training.precision);
  if (how.zero == 3 && how.sharers() > 1) {
    const ParameterBytes each = parameter_bytes(training.precision);
    const double parameters = how.dense_of(shape) + how.experts_of(shape);
    plan.working_bytes = 2 * parameters / real(shape.layers) * (each.weights + each.gradients);
  }
  plan.memory_bytes = plan.state.on_gpu() + plan.activation_bytes + plan.working_bytes;
  plan.host_bytes = plan.state.on_host * real(std::min(machines.gpus, machines.gpus_per_node));
  if (plan.memory_bytes > machines.usable_bytes()) {
    plan.misfit = fmt::format(
        "needs {} a GPU ({} of weights, gradients and optimizer, {} of activations); {} are usable",
        in_bytes(plan.memory_bytes), in_bytes(plan.state.on_gpu() + plan.working_bytes),
        in_bytes(plan.activation_bytes), in_bytes(machines.usable_bytes()));
  } else if (machines.host_memory_bytes > 0 && plan.host_bytes > machines.host_memory_bytes) {
    plan.misfit = fmt::format("needs {} of a node's own memory, which has {}",
                              in_bytes(plan.host_bytes), in_bytes(machines.host_memory_bytes));
  }
}

void add_traffic(Plan& plan, const ModelShape& shape, const PlanTraining& training) {
  const Division& how = plan.division;
  const ModelShape own = own_shape(shape, how);
  const double layers = real(shape.layers) / real(how.pp);
  const double times = real(plan.microbatches);
  plan.tensor_bytes =
      times * layers *
      tensor_parallel_bytes(own, how.micro_batch, how.tp, how.recompute, training.precision);
  plan.context_bytes = times * layers *
                       context_parallel_bytes(own, how.micro_batch, how.tp, how.cp, how.recompute,
                                              training.precision);
  if (how.ep > 1)
    plan.expert_bytes =
        times * layers *
        expert_parallel_bytes(own, how.micro_batch, how.ep, how.recompute, training.precision);
  if (how.pp > 1)
    plan.pipeline_bytes =
        times * pipeline_bytes(own, how.micro_batch, how.tp, how.chunks, training.precision);
  plan.data_bytes = data_parallel_bytes(how.dense_of(shape), training.precision, how.zero,
                                        how.sharers(), plan.microbatches);
  plan.replica_bytes = data_parallel_bytes(how.experts_of(shape), training.precision, how.zero,
                                           how.replicas(), plan.microbatches);
}

void add_host_time(Plan& plan, const ModelShape& shape, const SiteMachines& machines,
                   const PlanTraining& training) {
  const Division& how = plan.division;
  if (!how.offload) return;
  const ParameterBytes each = parameter_bytes(training.precision);
  const double own =
      how.dense_of(shape) / real(how.sharers()) + how.experts_of(shape) / real(how.replicas());
  const double of_node = own * real(std::min(machines.gpus, machines.gpus_per_node));
  plan.host_s = own * (each.gradients + each.weights) / machines.host_bytes_s +
                host_adam_seconds(of_node, machines.host_memory_bytes_s);
}

void add_time(Plan& plan, const ModelShape& shape, const SiteMachines& machines,
              const PlanTraining& training) {
  const Division& how = plan.division;
  plan.compute_s = step_flops(shape, training.batch, how.recompute) /
                   (real(machines.gpus) * machines.flops_s * machines.utilisation);
  if (plan.tensor_bytes > 0) plan.tensor_s = plan.tensor_bytes / machines.intra_bytes_s;
  if (plan.context_bytes > 0) {
    const bool is_inside = how.tp * how.cp <= std::min(machines.gpus, machines.gpus_per_node);
    plan.context_s =
        plan.context_bytes / (is_inside ? machines.intra_bytes_s : machines.inter_bytes_s);
  }
  if (plan.expert_bytes > 0) {
    const bool is_inside = expert_group(machines, how).nodes == 1;
    plan.expert_s =
        plan.expert_bytes / (is_inside ? machines.intra_bytes_s : machines.inter_bytes_s);
  }
  plan.bubble_s = (plan.compute_s + plan.tensor_s + plan.context_s + plan.expert_s) *
                  pipeline_bubble(how.stages(), plan.microbatches);
  if (plan.pipeline_bytes > 0) {
    const bool is_inside = machines.gpus <= machines.gpus_per_node;
    plan.pipeline_s =
        plan.pipeline_bytes / (is_inside ? machines.intra_bytes_s : machines.inter_bytes_s);
  }
  // The bytes of an all-reduce of this vector are those that the plan sends.
  const auto seconds = [&](double sent, bool of_experts) {
    const std::int64_t ranks = of_experts ? how.replicas() : how.sharers();
    if (ranks == 1) return 0.0;
    const GroupShape group = data_group(machines, how, of_experts);
    const double vector = sent / all_reduce_bytes(1, ranks);
    return all_reduce_seconds(vector, group.local, group.nodes, machines.intra_bytes_s,
                              machines.inter_bytes_s);
  };
  plan.gradients_s =
      seconds(plan.data_bytes.gradients, false) + seconds(plan.replica_bytes.gradients, true);
  plan.weights_s =
      seconds(plan.data_bytes.weights, false) + seconds(plan.replica_bytes.weights, true);
  const double forward = plan.compute_s * (1 - backward_part(how.recompute));
  const double weights_window =
      how.zero == 3 ? plan.compute_s - gradient_window(plan) : forward / real(plan.microbatches);
  plan.exposed_s = exposed_seconds(plan.gradients_s, gradient_window(plan)) +
                   exposed_seconds(plan.weights_s, weights_window);
  add_host_time(plan, shape, machines, training);
  plan.step_s = plan.compute_s + plan.bubble_s + plan.tensor_s + plan.context_s + plan.expert_s +
                plan.pipeline_s + plan.exposed_s + plan.host_s;
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> found;
  for (std::int64_t at = 1; at * at <= number; ++at) {
    if (number % at != 0) continue;
    found.push_back(at);
    if (at != number / at) found.push_back(number / at);
  }
  std::ranges::sort(found);
  return found;
}

/// Orders plans that fit before the others and by time; of times within 1 % the simpler division
/// wins. Plans that do not fit are ordered by how much they need.
auto order_of(const Plan& plan) {
  const Division& how = plan.division;
  const bool fits = plan.misfit.empty();
  const auto rank = fits ? std::llround(std::log(plan.step_s) * 100)
                         : std::llround(std::min(plan.memory_bytes, 1e18));
  return std::tuple(!fits, rank, how.offload, how.pp, how.chunks, how.cp, how.ep, how.tp, how.zero,
                    how.recompute == Recompute::full, -how.micro_batch);
}

bool is_better(const Plan& a, const Plan& b) { return order_of(a) < order_of(b); }

/// The kinds of division that are compared. ZeRO-2 and 3 are not combined with pipelines: they
/// would reduce the gradients, or gather the weights, in each of a pipeline's many microbatches.
std::vector<Division> families(const ModelShape& shape) {
  std::vector<Division> all;
  for (const bool has_cp : {false, true}) {
    if (has_cp && shape.sequence < long_sequence) continue;
    for (const bool has_tp : {false, true}) {
      for (const bool has_pp : {false, true}) {
        for (const auto& [zero, offload] :
             {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {2, true}, {3, true}}) {
          if (has_pp && zero > 1) continue;
          Division& one = all.emplace_back();
          one.zero = zero;
          one.offload = offload;
          one.tp = has_tp ? 2 : 1;
          one.cp = has_cp ? 2 : 1;
          one.pp = has_pp ? 2 : 1;
          // Our ranks divide experts' moments, too.
          if (shape.experts < 2 || zero == 0) continue;
          Division& with_experts = all.emplace_back(one);
          with_experts.ep = 2;
        }
      }
    }
  }
  return all;
}

/// The schedules of a pipeline that are compared: ZB-H1 waits least, and takes most memory.
struct StagesChoice {
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_back;
  std::int64_t chunks = 1;
};
std::vector<StagesChoice> schedules_of(const ModelShape& shape, std::int64_t pp) {
  if (pp == 1) return {StagesChoice()};
  std::vector<StagesChoice> all{{PipelineSchedule::zero_bubble, 1}, StagesChoice()};
  for (const std::int64_t chunks : {4, 8})
    if (shape.layers % (pp * chunks) == 0) all.push_back({PipelineSchedule::interleaved, chunks});
  return all;
}

bool any_above_1(const std::vector<std::int64_t>& numbers, std::int64_t divides) {
  return std::ranges::any_of(numbers, [divides](auto n) { return n > 1 && divides % n == 0; });
}

/// Says why no division of this family is possible with these numbers.
std::string impossible(const ModelShape& shape, const SiteMachines& machines,
                       const PlanTraining& training, const Division& family) {
  const std::int64_t in_node = std::min(machines.gpus, machines.gpus_per_node);
  if (machines.gpus == 1) return "there is one GPU only";
  if (family.tp > 1 && !any_above_1(divisors(in_node), shape.heads))
    return fmt::format("no number that divides the {} GPUs of a node divides {} heads too", in_node,
                       shape.heads);
  if (family.cp > 1 && !any_above_1(divisors(machines.gpus), shape.sequence / 2))
    return fmt::format("no number that divides {} GPUs divides half of {} tokens too",
                       machines.gpus, shape.sequence);
  if (family.ep > 1 && !any_above_1(divisors(machines.gpus), shape.experts))
    return fmt::format("no number that divides {} GPUs divides {} experts too", machines.gpus,
                       shape.experts);
  if (family.pp > 1 && !any_above_1(divisors(machines.gpus), shape.layers))
    return fmt::format("no number that divides {} GPUs divides {} layers too", machines.gpus,
                       shape.layers);
  return fmt::format(
      "{} GPUs can't be divided so that each replica gets as many of the {} "
      "sequences of a batch",
      machines.gpus, training.batch);
}

/// Calls use(division) for each grid of a family; the ranks of dp are the rest.
void for_each_grid(const ModelShape& shape, const SiteMachines& machines, const Division& family,
                   const std::function<void(Division&)>& use) {
  const std::int64_t in_node = std::min(machines.gpus, machines.gpus_per_node);
  for (const std::int64_t tp : divisors(in_node)) {
    if ((tp > 1) != (family.tp > 1) || shape.heads % tp != 0) continue;
    for (const std::int64_t cp : divisors(machines.gpus / tp)) {
      if ((cp > 1) != (family.cp > 1) || (cp > 1 && shape.sequence % (2 * cp * tp) != 0)) continue;
      for (const std::int64_t pp : divisors(machines.gpus / (tp * cp))) {
        if ((pp > 1) != (family.pp > 1) || shape.layers % pp != 0) continue;
        Division one = family;
        one.tp = tp;
        one.cp = cp;
        one.pp = pp;
        one.dp = machines.gpus / (tp * cp * pp);
        for (const std::int64_t ep : divisors(one.sharers())) {
          if ((ep > 1) != (family.ep > 1) || (ep > 1 && shape.experts % ep != 0)) continue;
          one.ep = ep;
          use(one);
        }
      }
    }
  }
}

/// Calls use(division) for each division of a family.
void for_each_division(const ModelShape& shape, const SiteMachines& machines,
                       const PlanTraining& training, const Division& family,
                       const std::function<void(const Division&)>& use) {
  // Without replicas there is nothing to divide among them; offload is ZeRO-2's then.
  const bool is_sharded = family.zero > 0 && !(family.zero == 2 && family.offload);
  std::vector<Recompute> recomputes{training.recompute};
  if (training.any_recompute) recomputes = {Recompute::selective, Recompute::full};
  for_each_grid(shape, machines, family, [&](Division& one) {
    if (training.batch % one.dp != 0 || (one.sharers() == 1 && is_sharded)) return;
    const std::int64_t sequences = training.batch / one.dp;
    for (one.micro_batch = 1; sequences % one.micro_batch == 0; one.micro_batch *= 2) {
      for (const auto& [schedule, chunks] : schedules_of(shape, one.pp)) {
        // Interleaved stages take microbatches in groups.
        if (chunks > 1 && sequences / one.micro_batch % one.pp != 0) continue;
        one.schedule = schedule;
        one.chunks = chunks;
        for (const Recompute recompute : recomputes) {
          one.recompute = recompute;
          use(one);
        }
      }
    }
  });
}

}  // namespace

std::string Division::family() const {
  std::string name;
  if (zero > 0 && sharers() > 1)
    name = fmt::format("ZeRO-{}", zero);
  else if (dp > 1)
    name = "DP";
  if (dp * tp * cp * pp == 1 && !offload) name = "one GPU";
  const auto add = [&name](const char* part) {
    name += (name.empty() ? "" : " + ") + std::string(part);
  };
  if (offload) add("offload");
  if (tp > 1) add("TP");
  if (cp > 1) add("CP");
  if (ep > 1) add("EP");
  if (pp > 1) add("PP");
  return name;
}

namespace {

/// A group of so many ranks whose neighbours are `apart` ranks apart.
GroupShape spread(const SiteMachines& machines, std::int64_t ranks, std::int64_t apart) {
  const std::int64_t in_node = std::min(machines.gpus, machines.gpus_per_node);
  const std::int64_t local = std::min(ranks, std::max<std::int64_t>(1, in_node / apart));
  if (ranks % local != 0) return {.local = 1, .nodes = ranks};
  return {.local = local, .nodes = ranks / local};
}

}  // namespace

GroupShape data_group(const SiteMachines& machines, const Division& division, bool of_experts) {
  if (of_experts) return spread(machines, division.replicas(), division.tp * division.ep);
  return spread(machines, division.sharers(), division.tp);
}

GroupShape expert_group(const SiteMachines& machines, const Division& division) {
  return spread(machines, division.ep, division.tp);
}

double exposed_seconds(double communication_s, double window_s) {
  return communication_s - overlap_efficiency * std::min(communication_s, window_s);
}

double gradient_window(const Plan& plan) {
  const double backward = plan.compute_s * backward_part(plan.division.recompute);
  return plan.division.zero >= 2 ? backward : backward / real(plan.microbatches);
}

Plan make_plan(const ModelShape& shape, const SiteMachines& machines, const PlanTraining& training,
               const Division& division) {
  Plan plan;
  plan.division = division;
  plan.microbatches = training.batch / (division.dp * division.micro_batch);
  add_memory(plan, shape, machines, training);
  add_traffic(plan, shape, training);
  add_time(plan, shape, machines, training);
  return plan;
}

std::vector<Plan> search_plans(const ModelShape& shape, const SiteMachines& machines,
                               const PlanTraining& training) {
  std::vector<Plan> found;
  for (const Division& family : families(shape)) {
    std::optional<Plan> best;
    for_each_division(shape, machines, training, family, [&](const Division& division) {
      Plan plan = make_plan(shape, machines, training, division);
      if (!best || is_better(plan, *best)) best = std::move(plan);
    });
    if (!best) {
      best.emplace();
      best->division = family;
      best->division.dp = 2;
      best->misfit = impossible(shape, machines, training, family);
      best->memory_bytes = 1e18;
    }
    found.push_back(*std::move(best));
  }
  std::ranges::stable_sort(found, is_better);
  return found;
}

std::optional<Plan> search_plan(const ModelShape& shape, const SiteMachines& machines,
                                const PlanTraining& training,
                                const std::function<bool(const Plan&)>& suits) {
  std::optional<Plan> best;
  for (const Division& family : families(shape)) {
    for_each_division(shape, machines, training, family, [&](const Division& division) {
      Plan plan = make_plan(shape, machines, training, division);
      if (!plan.misfit.empty() || (best && !is_better(plan, *best)) || !suits(plan)) return;
      best = std::move(plan);
    });
  }
  return best;
}

}  // namespace fl::site
