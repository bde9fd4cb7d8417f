// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/parallel.hpp"

#include "client/site/rank/data_parallel.hpp"
#include "client/site/rank/reduction.hpp"
#include "client/site/rank/shards/sharded_parallel.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::site {

namespace {

/// Errors: invalid_input, for flags that don't go with --zero, or with experts of which ranks have
/// some.
Result<void> check_zero(const ParallelSettings& settings, const ParsedHook& hook) {
  const bool has_others = settings.ep > 1;
  const auto refuse = [&](std::string_view flag, std::string_view value, std::string_view why) {
    const std::string with = has_others ? fmt::format("--parallel ep={}", settings.ep)
                                        : fmt::format("--zero {}", settings.zero);
    return Error(Errc::invalid_input,
                 fmt::format("{} does not go with {} {}: {}", with, flag, value, why));
  };
  if ((settings.zero > 0 || has_others) && hook.row.is_local)
    return refuse("--hook", settings.hook,
                  "its ranks have parameters of their own between the means, and can't share them");
  if (settings.zero < 2 && !has_others) return {};
  if (!hook.hook->plain_format())
    return refuse("--hook", settings.hook,
                  std::string("each rank gets a part of the gradient only; allreduce, bf16 and "
                              "fp16 work on parts") +
                      (has_others ? "" : ", and --zero 1 goes with this hook"));
  if (settings.topology != "backend")
    return refuse("--topology", settings.topology,
                  "gradients go to the ranks that have the parts, in one way only");
  if (settings.unused_parameters != "refuse")
    return refuse("--unused-parameters", settings.unused_parameters,
                  "a part is reduced when all of its gradients are there");
  if (!settings.bucket_mb.empty())
    return refuse("--bucket-mb", settings.bucket_mb, "gradients are reduced layer by layer");
  return {};
}

/// Errors: invalid_input, for flags that don't go with a pipeline.
Result<void> check_stages(const ParallelSettings& settings, const PipelineDivision& stages) {
  if (stages.ranks == 1) return {};
  if (settings.unused_parameters != "refuse")
    return Error(Errc::invalid_input,
                 fmt::format("--unused-parameters {} does not go with --parallel pp={}: each "
                             "layer of a stage has its part of every pass",
                             settings.unused_parameters, settings.pp));
  if (stages.schedule == PipelineSchedule::zero_bubble && settings.zero >= 2)
    return Error(Errc::invalid_input,
                 fmt::format("--zero {} does not go with --pipeline zb-h1: gradients that are "
                             "computed later can't go to the ranks that have the parts with each "
                             "pass; --zero 1 goes with it",
                             settings.zero));
  return {};
}

/// Whether ranks get sums of their own parts only. With stage 1 a hook, a topology or a way to find
/// unused parameters may want whole gradients on all ranks. Those of experts go to few ranks, and
/// c10d's Reducer knows one group only: then stage 0 is as stage 1, which sends as much.
bool sums_parts(const ParallelSettings& settings, const ParsedHook& hook) {
  if (settings.zero > 1 || settings.ep > 1) return true;
  if (settings.zero == 0) return false;
  const bool is_plain = settings.topology == "backend" || settings.topology == "alltoall";
  return is_plain && hook.hook->plain_format() && settings.unused_parameters == "refuse" &&
         settings.bucket_mb.empty();
}

}  // namespace

Result<std::unique_ptr<Parallel>> make_parallel(const ParallelSettings& settings,
                                                std::function<void()> on_progress) {
  FL_TRY(const ParsedHook hook, check_reduction(settings.hook, settings.topology));
  FL_CHECK(check_zero(settings, hook));
  if (settings.tp < 1 || settings.cp < 1 || settings.ep < 1 || settings.pp < 1)
    return Error(Errc::invalid_input, fmt::format("tp {}, cp {}, ep {}, pp {}", settings.tp,
                                                  settings.cp, settings.ep, settings.pp));
  FL_TRY(const ContextWay way, parse_context_way(settings.context_parallel));
  FL_TRY(const PipelineDivision stages, parse_pipeline(settings.pipeline, settings.pp));
  FL_CHECK(check_stages(settings, stages));
  FL_TRY(const ExpertWay expert_way, parse_expert_way(settings.expert_parallel));
  const PassDivision division{
      .layers = {.ranks = settings.tp, .divides_tokens = settings.sequence_parallel},
      .texts = {.ranks = settings.cp, .way = way},
      .stages = stages,
      .experts = {.ranks = settings.ep, .way = expert_way}};
  if (!sums_parts(settings, hook))
    return std::unique_ptr<Parallel>(
        std::make_unique<DataParallel>(std::move(on_progress), settings.zero == 1, division));
  return std::unique_ptr<Parallel>(std::make_unique<ShardedParallel>(
      std::move(on_progress),
      ShardedParallel::Options{.frees_parameters = settings.zero == 3,
                               .keeps_gradients = settings.zero <= 1},
      division));
}

}  // namespace fl::site
