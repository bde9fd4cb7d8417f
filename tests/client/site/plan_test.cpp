// SPDX-License-Identifier: Apache-2.0
// The formulas of client/site/plan/ against published cases, whose values are worked out by hand in
// docs/design/sites-planning.md; and the search against what each plan must obey.
#include "client/site/plan/compression.hpp"
#include "client/site/plan/formulas.hpp"
#include "client/site/plan/inputs.hpp"
#include "client/site/plan/search.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

using namespace fl;
using namespace fl::site;
using doctest::Approx;

namespace {

constexpr auto bf16 = PlanPrecision::bf16;

ModelShape gpt3() {
  return {.parameters = 175e9,
          .layers = 96,
          .hidden = 12288,
          .heads = 96,
          .vocabulary = 51'200,
          .sequence = 2048};
}

ModelShape mixtral() {
  return complete_shape({.parameters = 46.7e9,
                         .layers = 32,
                         .hidden = 4096,
                         .heads = 32,
                         .sequence = 4096,
                         .experts = 8,
                         .active = 12.9e9})
      .value();
}

/// 7 billion parameters on two nodes of eight GPUs with 80 GB.
ModelShape seven_billion() { return complete_shape({.parameters = 7e9}).value(); }

SiteMachines two_nodes(double inter_bytes_s = 25e9) {
  SiteMachines site;
  site.gpus = 16;
  site.memory_bytes = 80e9;
  site.intra_bytes_s = 300e9;
  site.inter_bytes_s = inter_bytes_s;
  return site;
}

PipelineDivision interleaved(std::int64_t ranks, std::int64_t chunks) {
  return {.ranks = ranks, .schedule = PipelineSchedule::interleaved, .chunks = chunks};
}

const HookResult& hook(const std::vector<HookResult>& all, const std::string& name) {
  return *std::ranges::find_if(all, [&](const HookResult& one) { return one.hook->spec == name; });
}

}  // namespace

TEST_CASE("quantities have units of 1000 and of 1024") {
  CHECK(parse_quantity("7e9").value() == 7e9);
  CHECK(parse_quantity("7B").value() == 7e9);
  CHECK(parse_quantity("80G").value() == 80e9);
  CHECK(parse_quantity("80GB").value() == 80e9);
  CHECK(parse_quantity("2.5GB/s").value() == 2.5e9);
  CHECK(parse_quantity("1.5GiB").value() == 1.5 * 1024 * 1024 * 1024);
  CHECK(parse_quantity("312T").value() == 312e12);
  for (const char* text : {"", "G", "0", "-3", "nan", "inf", "1e999", "7X", "7 G", "7GG", "0x10"}) {
    CAPTURE(text);
    CHECK(parse_quantity(text).has_error());
  }
  CHECK(in_bytes(72.5e9) == "72.5 GB");
  CHECK(in_bytes(999.7e6) == "1.00 GB");
  CHECK(in_seconds(0.0123) == "12.3 ms");
  CHECK(in_seconds(3 * 3600.0) == "3.00 h");
  CHECK(in_count(175e9) == "175 billion");
}

TEST_CASE("a shape that is not given is in GPT-3's proportions") {
  const ModelShape seven = seven_billion();
  CHECK(seven.layers == 32);
  CHECK(seven.hidden == 4096);
  CHECK(seven.heads == 32);
  const ModelShape experts = complete_shape({.parameters = 46.7e9, .experts = 8}).value();
  CHECK(experts.layers == 32);
  CHECK(experts.hidden == 4096 + 1024);
  CHECK(experts.active < 46.7e9 / 2);
  const ModelShape large = complete_shape({.parameters = 175e9}).value();
  CHECK(large.layers == 96);
  CHECK(large.hidden == 12288);
  CHECK(large.heads == 96);
  CHECK(large.is_assumed);
  CHECK_FALSE(complete_shape(gpt3()).value().is_assumed);
  CHECK(complete_shape({.parameters = 7e9, .layers = 2, .hidden = 512}).has_error());
  CHECK(complete_shape({.parameters = 7e9, .layers = 32, .hidden = 4096, .heads = 7}).has_error());
}

TEST_CASE("memory of weights, gradients and optimizer is that of ZeRO's table 1") {
  // 7.5 billion parameters on 64 GPUs (Rajbhandari 2020): 120, 31.4, 16.6 and 1.88 GB.
  const auto gigabytes = [](int zero) {
    return state_memory(7.5e9, bf16, zero, 64, false).on_gpu() / 1e9;
  };
  CHECK(gigabytes(0) == Approx(120.0));
  CHECK(gigabytes(1) == Approx(31.40625));
  CHECK(gigabytes(2) == Approx(16.640625));
  CHECK(gigabytes(3) == Approx(1.875));
  // LLaMA 70B: 16 bytes a parameter, in fp32 too.
  CHECK(state_memory(70e9, bf16, 0, 1, false).on_gpu() == Approx(1120e9));
  CHECK(state_memory(70e9, PlanPrecision::fp32, 0, 1, false).on_gpu() == Approx(1120e9));
  // Offload keeps the weights: 140 GB, and 14 bytes a parameter in the hosts of all GPUs.
  const StateMemory offload = state_memory(70e9, bf16, 2, 8, true);
  CHECK(offload.on_gpu() == Approx(140e9));
  CHECK(offload.on_host * 8 == Approx(980e9));
}

TEST_CASE("activations are those of Korthikanti's table 2") {
  // One sequence and layer of GPT-3: s b h = 25,165,824 values; 5 a s / h = 80.
  const auto layer = [](std::int64_t tp, Recompute recompute) {
    return layer_activation_bytes(gpt3(), 1, tp, recompute, bf16);
  };
  CHECK(layer(1, Recompute::none) == Approx(25'165'824.0 * 114));
  CHECK(layer(1, Recompute::selective) == Approx(25'165'824.0 * 34));
  CHECK(layer(8, Recompute::selective) == Approx(25'165'824.0 * 4.25));
  CHECK(layer(8, Recompute::full) == Approx(25'165'824.0 * 2));
  // "saves 70 %" for GPT-3 and 65 % for MT-NLG (section 5).
  CHECK(1 - layer(1, Recompute::selective) / layer(1, Recompute::none) ==
        Approx(0.70).epsilon(0.01));
  const ModelShape mt_nlg{.parameters = 530e9, .layers = 105, .hidden = 20480, .heads = 128};
  CHECK(1 - layer_activation_bytes(mt_nlg, 1, 8, Recompute::selective, bf16) /
                layer_activation_bytes(mt_nlg, 1, 8, Recompute::none, bf16) ==
        Approx(0.65).epsilon(0.01));

  // The first of 8 stages has 8 microbatches of 12 layers in flight, and their dropout masks.
  const double in_flight = 25'165'824.0 / 8 * (8 * 12 * 34 + 8);
  CHECK(stage_activation_bytes(gpt3(), 1, 64, 8, {.ranks = 8}, Recompute::selective, bf16) ==
        Approx(in_flight));
  // Without a pipeline the logits come on top: 4 s b h (1 + v / h) bytes, v / h = 4.1667.
  const double alone = 25'165'824.0 / 8 * (96 * 34 + 1 + 4 * (1 + 51'200.0 / 12'288));
  CHECK(stage_activation_bytes(gpt3(), 1, 64, 8, {}, Recompute::selective, bf16) == Approx(alone));
  // With 3 stages a rank the first one has (14 + 16 + 1) / 3 microbatches of 12 layers in flight.
  CHECK(microbatches_in_flight(interleaved(8, 3), 64) == Approx(31.0 / 3));
  CHECK(microbatches_in_flight(interleaved(8, 3), 8) == Approx(8));
  CHECK(microbatches_in_flight({.ranks = 8}, 4) == 4);
  // The last rank of ZB-H1 keeps 34 bytes a value of 7 more microbatches, beside the logits.
  const double last = 25'165'824.0 / 8 * (8 * 12 * 34 + 4 * (1 + 51'200.0 / 12'288));
  CHECK(stage_activation_bytes(gpt3(), 1, 64, 8,
                               {.ranks = 8, .schedule = PipelineSchedule::zero_bubble},
                               Recompute::selective, bf16) == Approx(last));
}

TEST_CASE("arithmetic of GPT-3 takes 34 days on 1024 GPUs") {
  // Narayanan 2021, section 5.1: 300 billion tokens at 140 TFLOP/s a GPU, with full recomputation.
  const double tokens_a_step = 1536.0 * 2048;
  const double days =
      step_flops(gpt3(), 1536, Recompute::full) * 300e9 / tokens_a_step / (1024 * 140e12) / 86'400;
  CHECK(days == Approx(34).epsilon(0.04));
  // Attention's scores are s / (6 h) of the rest: 2.8 %.
  CHECK(step_flops(gpt3(), 1, Recompute::none) / (6 * 175e9 * 2048) ==
        Approx(1 + 12 * 96 * 12288 * 2048.0 / (6 * 175e9)));
}

TEST_CASE("traffic of tensor, pipeline and data parallelism") {
  // GPT-3, one layer and sequence, 8 ranks: 4 all-reduces of 25,165,824 values of 2 bytes.
  CHECK(tensor_parallel_bytes(gpt3(), 1, 8, Recompute::selective, bf16) == Approx(352'321'536.0));
  CHECK(tensor_parallel_bytes(gpt3(), 1, 8, Recompute::full, bf16) == Approx(528'482'304.0));
  CHECK(tensor_parallel_bytes(gpt3(), 1, 1, Recompute::full, bf16) == 0);
  CHECK(pipeline_bytes(gpt3(), 1, 8, 1, bf16) == Approx(12'582'912.0));
  CHECK(pipeline_bytes(gpt3(), 1, 8, 3, bf16) == Approx(3 * 12'582'912.0));
  CHECK(pipeline_bubble({.ranks = 8}, 56) == Approx(0.125));
  CHECK(pipeline_bubble({}, 4) == 0);
  // Narayanan 2021, section 2.2: a v-th of it. Qi 2024, section 2.3: a third.
  CHECK(pipeline_bubble(interleaved(8, 2), 56) == Approx(0.0625));
  CHECK(pipeline_bubble({.ranks = 8, .schedule = PipelineSchedule::zero_bubble}, 56) ==
        Approx(0.125 / 3));
  // 131,072 tokens of LLaMA 70B over 16 ranks of context parallelism and 8 of tensor parallelism: a
  // rank has 8,192 tokens of 1,024 values, whose keys and values go to 15 others twice, and their
  // gradients once: 6 * 15 * 8,388,608 * 2 bytes in a layer.
  const ModelShape part{
      .parameters = 70e9, .layers = 80, .hidden = 8192, .heads = 64, .sequence = 8192};
  CHECK(context_parallel_bytes(part, 1, 8, 16, Recompute::selective, bf16) ==
        Approx(1'509'949'440.0));
  CHECK(context_parallel_bytes(part, 1, 8, 16, Recompute::full, bf16) == Approx(2'013'265'920.0));
  CHECK(context_parallel_bytes(part, 1, 8, 1, Recompute::full, bf16) == 0);

  // LLaMA 70B, 64 replicas: 140 GB of gradients, 2 * 63 / 64 of it in a ring.
  const auto sent = [](int zero, std::int64_t microbatches) {
    const DataParallelBytes bytes = data_parallel_bytes(70e9, bf16, zero, 64, microbatches);
    return bytes.gradients + bytes.weights;
  };
  CHECK(sent(0, 1) == Approx(275.625e9));
  CHECK(sent(0, 8) == Approx(275.625e9));
  CHECK(sent(1, 8) == Approx(275.625e9));
  CHECK(sent(2, 1) == Approx(275.625e9));
  CHECK(sent(2, 8) == Approx(9 * 137.8125e9));
  CHECK(sent(3, 1) == Approx(1.5 * 275.625e9));  // "at most 1.5x", ZeRO, section 7.2.2.
  CHECK(sent(3, 2) == Approx(6 * 137.8125e9));
  CHECK(data_parallel_bytes(70e9, bf16, 0, 1, 1).gradients == 0);
}

TEST_CASE("an all-reduce over nodes uses every GPU's link") {
  // 8 GB: 1.75 * 8 GB inside the node, then 1 GB for each GPU between two nodes.
  CHECK(all_reduce_seconds(8e9, 8, 2, 100e9, 10e9) == Approx(0.14 + 0.1));
  CHECK(all_reduce_seconds(8e9, 1, 2, 100e9, 10e9) == Approx(0.8));
  CHECK(all_reduce_seconds(8e9, 1, 1, 100e9, 10e9) == 0);
  // Each GPU fetches 1 GB from the other node, and passes 2 * 7 payloads on inside.
  CHECK(all_gather_seconds(1e9, 8, 2, 100e9, 10e9) == Approx(0.1 + 0.14));
}

TEST_CASE("every plan that fits divides all GPUs and stays within the memory") {
  PlanTraining training;
  for (const std::int64_t gpus : {1, 2, 8, 16, 24, 64}) {
    CAPTURE(gpus);
    training.batch = 12 * gpus;
    SiteMachines site = two_nodes();
    site.gpus = gpus;
    const auto plans = search_plans(seven_billion(), site, training);
    CHECK(plans.size() == 16);
    bool had_misfit = false;
    for (const Plan& plan : plans) {
      CAPTURE(plan.division.family());
      if (!plan.misfit.empty()) {
        had_misfit = true;
        continue;
      }
      CHECK_FALSE(had_misfit);  // Plans that fit come first.
      const Division& how = plan.division;
      CHECK(how.dp * how.tp * how.pp == gpus);
      CHECK(how.dp * how.micro_batch * plan.microbatches == training.batch);
      CHECK(how.tp <= 8);
      CHECK(32 % how.tp == 0);
      CHECK(32 % how.pp == 0);
      CHECK(plan.memory_bytes <= 72e9);
      CHECK(plan.step_s >= plans.front().step_s * 0.98);
    }
  }
}

TEST_CASE("experts of Mixtral 8x7B take and send what its published sizes say") {
  // Jiang et al., "Mixtral of Experts", 2024, section 2.1: 46.7 billion parameters, of which a
  // token uses 12.9 billion. So experts have 33.8 / (1 - 2 / 8) = 45.07 billion, and the rest 1.63.
  const ModelShape shape = mixtral();
  CHECK(shape.of_experts() == Approx(45.0667e9));
  CHECK(step_flops(shape, 1, Recompute::none) ==
        Approx(4096 * (6 * 12.9e9 + 12 * 32 * 4096.0 * 4096)));
  // Activations: 15 of 34 for the attention and norms, 19 for each of two experts.
  CHECK(layer_activation_bytes(shape, 1, 1, Recompute::selective, bf16) ==
        Approx(53 * 4096.0 * 4096));
  // A layer and sequence over 8 ranks: 4 ways of 4096 tokens, 2 experts, 4096 values, 2 bytes.
  CHECK(expert_parallel_bytes(shape, 1, 8, Recompute::selective, bf16) == Approx(234'881'024.0));
  CHECK(expert_parallel_bytes(shape, 1, 8, Recompute::full, bf16) == Approx(352'321'536.0));
  CHECK(expert_parallel_bytes(shape, 1, 1, Recompute::full, bf16) == 0);
  SiteMachines site = two_nodes();
  site.gpus = 64;
  const Division how{.dp = 64, .ep = 8, .zero = 1};
  const Plan plan = make_plan(shape, site, {.batch = 64}, how);
  // 4 + 12 / 64 bytes for each of 1.6333 billion, 4 + 12 / 8 for each of 45.0667 / 8 billion.
  CHECK(plan.state.on_gpu() == Approx(1.6333333e9 * 4.1875 + 5.6333333e9 * 5.5));
  CHECK(plan.expert_bytes == Approx(32 * 234'881'024.0));
  // Half an all-reduce of gradients and half of weights: over 64 ranks, and over 8.
  CHECK(plan.data_sent() == Approx(4 * 1.6333333e9 * 63 / 64 + 4 * 5.6333333e9 * 7 / 8));
  // On 8 GPUs of a node each: tokens stay inside, and the 8 replicas are on 8 nodes.
  CHECK(expert_group(site, how).nodes == 1);
  CHECK(plan.expert_s == Approx(plan.expert_bytes / 300e9));
  CHECK(data_group(site, how, true).nodes == 8);
  CHECK(data_group(site, how).nodes == 8);
  const Division wide{.dp = 32, .tp = 2, .ep = 8, .zero = 1};
  CHECK(expert_group(site, wide).local == 4);
  CHECK(expert_group(site, wide).nodes == 2);
  CHECK(data_group(site, wide, true).local == 1);
}

TEST_CASE("experts are divided where a rank can't hold all of them") {
  SiteMachines site = two_nodes();
  site.gpus = 64;
  const auto plans = search_plans(mixtral(), site, {});
  CHECK(plans.front().division.family() == "ZeRO-1 + EP");
  for (const Plan& plan : plans) {
    const Division& how = plan.division;
    if (plan.step_s == 0) continue;
    CAPTURE(how.family());
    CHECK(how.dp * how.tp * how.pp == 64);
    CHECK(how.sharers() % how.ep == 0);
    CHECK(8 % how.ep == 0);
    CHECK((plan.expert_bytes > 0) == (how.ep > 1));
    if (how.ep > 1) CHECK(how.zero > 0);
  }
  ModelShape odd = mixtral();
  odd.experts = 7;
  for (const Plan& plan : search_plans(odd, site, {}))
    if (plan.division.ep > 1) CHECK(plan.misfit.find("divides 7 experts") != std::string::npos);
}

TEST_CASE("long sequences are divided where a rank can't keep their activations") {
  ModelShape shape = seven_billion();
  shape.sequence = 131'072;
  const auto plans = search_plans(shape, two_nodes(), {.batch = 4});
  CHECK(plans.size() == 32);
  const Plan& best = plans.front();
  CAPTURE(best.division.family());
  CHECK(best.misfit.empty());
  CHECK(best.division.cp > 1);
  for (const Plan& plan : plans) {
    if (plan.step_s == 0) continue;
    const Division& how = plan.division;
    CHECK(how.dp * how.tp * how.cp * how.pp == 16);
    CHECK((plan.context_bytes > 0) == (how.cp > 1));
    // A quarter of the tokens on a rank, a quarter of the activations.
    if (how.cp != 4) continue;
    Division whole = how;
    whole.dp *= 4;
    whole.cp = 1;
    const Plan other = make_plan(shape, two_nodes(), {.batch = 4 * 4}, whole);
    CHECK(plan.activation_bytes == Approx(other.activation_bytes / 4));
  }
  shape.sequence = 8192;
  for (const Plan& plan : search_plans(shape, two_nodes(), {})) CHECK(plan.division.cp == 1);
}

TEST_CASE("pipelines have the schedule that waits least") {
  ModelShape shape = gpt3();
  SiteMachines site = two_nodes();
  site.gpus = 1024;
  bool has_better = false;
  for (const Plan& plan : search_plans(shape, site, {.batch = 1536})) {
    const Division& how = plan.division;
    if (plan.step_s == 0 || how.pp == 1) continue;
    Division plain = how;
    plain.schedule = PipelineSchedule::one_forward_one_back;
    plain.chunks = 1;
    const Plan other = make_plan(shape, site, {.batch = 1536}, plain);
    // Unless that would not fit.
    Division better = plain;
    better.schedule = PipelineSchedule::zero_bubble;
    const bool has_room = make_plan(shape, site, {.batch = 1536}, better).misfit.empty();
    if (has_room) CHECK(plan.step_s <= other.step_s);
    has_better = has_better || plan.bubble_s < other.bubble_s / 2;
    CHECK(shape.layers % (how.pp * how.chunks) == 0);
    if (how.chunks > 1) CHECK(plan.microbatches % how.pp == 0);
  }
  CHECK(has_better);
}

TEST_CASE("a plan says why it does not fit") {
  const auto plans = search_plans(seven_billion(), two_nodes(), {});
  CHECK(plans.front().division.family() == "ZeRO-1");
  const auto& plain =
      *std::ranges::find_if(plans, [](const Plan& plan) { return plan.division.family() == "DP"; });
  CHECK(plain.misfit.find("112 GB of weights, gradients and optimizer") != std::string::npos);
  CHECK(plain.misfit.find("72.0 GB are usable") != std::string::npos);

  ModelShape odd = seven_billion();
  odd.heads = 1;
  odd.layers = 31;
  for (const Plan& plan : search_plans(odd, two_nodes(), {})) {
    if (plan.division.tp > 1) CHECK(plan.misfit.find("divides 1 heads") != std::string::npos);
    if (plan.division.tp == 1 && plan.division.pp > 1)
      CHECK(plan.misfit.find("divides 31 layers") != std::string::npos);
  }

  SiteMachines small = two_nodes();
  small.host_memory_bytes = 10e9;
  for (const Plan& plan : search_plans(seven_billion(), small, {})) {
    if (plan.division.offload) CHECK(plan.misfit.find("a node's own memory") != std::string::npos);
  }
}

TEST_CASE("compression pays on a slow link and not on a fast one") {
  // One billion parameters: plain data parallelism fits.
  const ModelShape shape = complete_shape({.parameters = 1e9}).value();
  Division how;
  how.dp = 16;
  const auto compare = [&](double inter_bytes_s) {
    const SiteMachines site = two_nodes(inter_bytes_s);
    const Plan plan = make_plan(shape, site, {.batch = 16}, how);
    HookAdvice advice = advise_hooks({plan}, shape, site, bf16, 100e9);
    return std::pair(std::move(advice.hooks), std::move(advice.text));
  };
  const auto [fast, fast_advice] = compare(25e9);
  CHECK(fast_advice.find("No compression pays") != std::string::npos);
  CHECK(hook(fast, "codec:ecuq:2+ef").saved_s < 0);
  CHECK(hook(fast, "hooks.codec ecuq:2+ef").saved_s < 0);
  CHECK(hook(fast, "allreduce").saved_s == Approx(0));

  const auto [slow, slow_advice] = compare(0.125e9);
  CHECK(slow_advice.find(" Compression pays: DP with ") != std::string::npos);
  // 2 * 15 / 16 of 2 GB without a hook; in parts an eighth of it, with two bits a value.
  CHECK(hook(slow, "allreduce").sent_bytes == Approx(3.75e9));
  CHECK(hook(slow, "hooks.codec ecuq:2+ef").sent_bytes == Approx(3.75e9 / 8));
  CHECK(hook(slow, "hooks.codec ecuq:2+ef").coding_s == Approx(0.04));
  // To each of 15 others.
  CHECK(hook(slow, "codec:ecuq:2+ef").sent_bytes == Approx(15 * 0.25e9));
  CHECK(hook(slow, "quantize:8").sent_bytes == Approx(15e9));
  CHECK(hook(slow, "hooks.codec ecuq:2+ef").saved_s > 0);

  how.zero = 3;
  const Plan sharded = make_plan(shape, two_nodes(), {.batch = 16}, how);
  CHECK(compare_hooks(sharded, shape, two_nodes(), bf16, 100e9).empty());
}

TEST_CASE("with a hook another plan may be the fastest") {
  // Pipelines avoid a slow link between nodes; with small codes data parallelism beats them.
  const ModelShape shape = complete_shape({.parameters = 1e9}).value();
  SiteMachines site = two_nodes(0.125e9);
  site.gpus_per_node = 4;
  const auto plans = search_plans(shape, site, {.batch = 64});
  CHECK(plans.front().division.pp > 1);
  const HookAdvice advice = advise_hooks(plans, shape, site, bf16, 100e9);
  const Plan& plan = plans[advice.plan];
  CHECK(plan.division.pp == 1);
  CHECK(plan.misfit.empty());
  CHECK(plan.step_s > plans.front().step_s);
  CHECK(advice.hooks.front().step_s < plans.front().step_s);
  // Nothing changes where the link is fast.
  site.inter_bytes_s = 100e9;
  CHECK(advise_hooks(search_plans(shape, site, {.batch = 64}), shape, site, bf16, 1e9).plan == 0);
}
