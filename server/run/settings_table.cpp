// SPDX-License-Identifier: Apache-2.0
// The settings of a run, one row each. docs/design/adding-a-setting.md says how to add one.
#include "server/run/settings_table.hpp"

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/run/round_mode.hpp"
#include "server/run/schedule.hpp"
#include "server/run/target.hpp"
#include "server/sums/aggregate_rule.hpp"
#include "server/sums/rules/rule_table.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

namespace {

using S = RunSettings;
using Work = TrainSettings;

template <class T>
Result<void> must_be(bool is_right, std::string_view range, const T& value) {
  if (is_right) return {};
  return Error(Errc::invalid_input, fmt::format("it must be {}, not {}", range, value));
}

template <auto field>
Result<void> is_positive_count(const S& s) {
  return must_be(s.*field > 0, "1 or more", s.*field);
}

template <auto field, std::uint32_t most>
Result<void> is_count_up_to(const S& s) {
  return must_be(s.*field > 0 && s.*field <= most, fmt::format("1 to {}", most), s.*field);
}

template <auto field>
Result<void> is_not_negative(const S& s) {
  return must_be(std::isfinite(s.*field) && s.*field >= 0, "0 or more", s.*field);
}

template <class T>
Result<void> outcome_of(const Result<T>& parsed) {
  if (parsed) return {};
  return parsed.error();
}

std::uint32_t epochs_of(const S& s) {
  const bool ends_otherwise = s.local_steps > 0 || s.local_seconds > 0;
  return s.local_epochs == 0 && !ends_otherwise ? 1 : s.local_epochs;
}

std::uint32_t steps_of(const S& s, const WorkRound& at) {
  if (s.local_steps == 0) return 0;
  const LocalSteps schedule = parse_steps_schedule(s.local_steps_schedule).value();
  return schedule.at(at.round, s.local_steps, at.losses);
}

double rate_of(const S& s, const WorkRound& at) {
  return s.lr * parse_schedule(s.lr_schedule).value().at(at.round, s.rounds);
}

constexpr RunSettingRow table[] = {
    {.field = &S::rounds,
     .flag = "rounds",
     .help = "How many rounds the run has",
     .check = is_positive_count<&S::rounds>},
    {.field = &S::model,
     .flag = "model",
     .help = "{}; or custom:NAME for a model that your own clients know by this name, with the "
             "tensors of --initial-weights",
     .help_names = builtin_model_names,
     .changeable = Changeable::not_at_all,
     .check = [](const S& s) { return outcome_of(model_layout(s)); }},
    {.field = &S::strategy,
     .flag = "strategy",
     .help = "The federated method, as NAME:KEY=VALUE,… ('fl-server strategies' lists them)",
     .changeable = Changeable::before_first_model,
     .check = [](const S& s) { return outcome_of(parse_strategy(s.strategy)); }},
    {.field = &S::min_clients,
     .flag = "min-clients",
     .help = "A round starts with this many clients, and closes with this many updates at least",
     .check = is_positive_count<&S::min_clients>},
    {.field = &S::clients_per_round,
     .flag = "clients-per-round",
     .help = "Clients sampled in each round; 0: --fraction decides"},
    {.field = &S::fraction,
     .flag = "fraction",
     .help = "Part of the connected clients that is sampled in each round",
     .check =
         [](const S& s) {
           return must_be(s.fraction > 0 && s.fraction <= 1, "above 0 and at most 1", s.fraction);
         }},
    {.field = &S::sampling,
     .flag = "sampling",
     .help = "How clients are sampled: {}",
     .help_names = [] { return alternatives(sampler_rows(), &SamplerRow::usage); },
     .check = [](const S& s) { return outcome_of(parse_sampler(s.sampling)); }},
    {.field = &S::mode,
     .flag = "mode",
     .help = "sync[:late=N] or async[:buffer=K,late=N,weight=sqrt,ahead=N,sync=T,compensate=L]",
     .changeable = Changeable::before_first_model,
     .check = [](const S& s) { return outcome_of(parse_mode(s.mode)); }},
    {.field = &S::over_select,
     .flag = "over-select",
     .help = "Asks this many times as many clients as the round needs; 0: as many more as were "
             "slow in earlier rounds",
     .check =
         [](const S& s) {
           return must_be(s.over_select == 0 || (s.over_select >= 1 && s.over_select <= 100),
                          "from 1 to 100, or 0 to adapt", s.over_select);
         }},
    {.field = &S::deadline_s,
     .flag = "deadline",
     .help = "After this many seconds a round closes with the updates it has. In an asynchronous "
             "run: the task is given to another client. 0: never",
     .key = "deadline_s",
     .check =
         [](const S& s) {
           const bool is_time = s.deadline_s >= limits::deadline_s_min && s.deadline_s <= 1e7;
           return must_be(
               s.deadline_s == 0 || is_time,
               fmt::format("from {} to 1e7 seconds, or 0 for none", limits::deadline_s_min),
               s.deadline_s);
         }},
    {.field = &S::local_epochs,
     .flag = "local-epochs",
     .help = "Passes over the local data in a round",
     .default_shown = "1",
     .flag_min = 1,
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.local_epochs = epochs_of(s); }},
    {.field = &S::local_steps,
     .flag = "local-steps",
     .help = "Mini-batch steps in a round, instead of epochs; 0: epochs",
     .into_work = [](const S& s, const WorkRound& at,
                     Work& w) { w.local_steps = steps_of(s, at); }},
    {.field = &S::local_steps_schedule,
     .flag = "local-steps-schedule",
     .help = "How many of --local-steps each round takes: constant, warmup:rounds=10 (from 1 to "
             "all), post-local:from=10 (1 before that round) or adaptive (fewer as the loss falls)",
     .check = [](const S& s) { return outcome_of(parse_steps_schedule(s.local_steps_schedule)); }},
    {.field = &S::local_seconds,
     .flag = "local-seconds",
     .help = "Seconds to train in a round, by the client's clock. A client takes the steps that "
             "fit, at least one, and at most --local-steps or --local-epochs if given; 0: no limit",
     .check =
         [](const S& s) {
           return must_be(s.local_seconds >= 0 && s.local_seconds <= local_seconds_max,
                          fmt::format("from 0 to {:g}", local_seconds_max), s.local_seconds);
         },
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.local_seconds = s.local_seconds; }},
    {.field = &S::batch_size,
     .flag = "batch-size",
     .help = "Examples in a mini-batch",
     .check = is_count_up_to<&S::batch_size, limits::batch_size_max>,
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.batch_size = s.batch_size; }},
    {.field = &S::accumulate,
     .flag = "accumulate",
     .help = "Mini-batches whose gradients make one step. It works like a batch that is this many "
             "times as large, in the memory of one",
     .check = is_count_up_to<&S::accumulate, limits::accumulate_max>,
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.accumulate = s.accumulate; }},
    {.field = &S::optimizer,
     .flag = "optimizer",
     .help = "The clients' optimizer: {}",
     .help_names = [] { return alternatives(optimizer_rows(), &OptimizerRow::usage); },
     .check = [](const S& s) { return outcome_of(parse_optimizer(s.optimizer)); },
     .into_work = [](const S& s, const WorkRound&,
                     Work& w) { w.optimizer = parse_optimizer(s.optimizer).value(); }},
    {.field = &S::lr,
     .flag = "lr",
     .help = "The clients' learning rate",
     .check = [](const S& s) { return must_be(std::isfinite(s.lr) && s.lr > 0, "above 0", s.lr); },
     .into_work = [](const S& s, const WorkRound& at, Work& w) { w.lr = rate_of(s, at); }},
    {.field = &S::lr_schedule,
     .flag = "lr-schedule",
     .help =
         "The learning rate by round: constant, cosine[:floor=0] or step[:every=10,factor=0.1]; "
         "each also takes warmup=N, as in constant:warmup=5",
     .check = [](const S& s) { return outcome_of(parse_schedule(s.lr_schedule)); }},
    {.field = &S::momentum,
     .flag = "momentum",
     .help = "Momentum of sgd and nesterov; it begins at zero in every round",
     .check =
         [](const S& s) {
           return must_be(s.momentum >= 0 && s.momentum < 1, "at least 0 and below 1", s.momentum);
         },
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.momentum = s.momentum; }},
    {.field = &S::weight_decay,
     .flag = "weight-decay",
     .help = "The clients' weight decay",
     .check = is_not_negative<&S::weight_decay>,
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.weight_decay = s.weight_decay; }},
    {.field = &S::proximal_mu,
     .flag = "proximal-mu",
     .help = "How strongly clients are pulled towards the global model, with any strategy; the "
             "same as mu of fedprox",
     .check = is_not_negative<&S::proximal_mu>,
     .into_work =
         [](const S& s, const WorkRound& at, Work& w) {
           w.proximal_mu = std::max(s.proximal_mu, at.strategy.proximal_mu());
         }},
    {.field = &S::codec,
     .flag = "codec",
     .help = "How clients code their updates ('fl-server codecs' lists them; none: fp32), or "
             "auto[:FINEST|…|COARSEST]: each client uses the finest that its connection sends in "
             "time",
     .check = [](const S& s) { return outcome_of(parse_ladder(s.codec)); }},
    {.field = &S::downlink_codec,
     .flag = "downlink-codec",
     .help = "How the server codes model steps, for clients that have the previous version",
     .check = [](const S& s) { return outcome_of(parse_downlink_codec(s.downlink_codec)); }},
    {.field = &S::aggregate,
     .flag = "aggregate",
     .help = "How a round's updates are combined: mean, or a rule that a few malicious clients "
             "can't steer: {}; each but mean also as nnm+RULE",
     .help_names = robust_rule_usages,
     .check = [](const S& s) { return outcome_of(parse_aggregate(s.aggregate)); }},
    {.field = &S::seed,
     .flag = "seed",
     .help = "Seed of the initial weights, the sampling and the shuffles",
     .default_shown = "random",
     .changeable = Changeable::not_at_all},
    {.field = &S::metric,
     .flag = "metric",
     .help = "Name of the run's main metric, which --patience follows and tables show; \"loss\" is "
             "one too. Without it: the --target's, or the first that the trainer reports",
     .check = [](const S& s) { return check_main_metric(s.metric); }},
    {.field = &S::target,
     .flag = "target",
     .help = "The run ends once evaluators measure this, for example 'accuracy>=0.86', "
             "'perplexity<=20' or 'loss<=0.3'",
     .check =
         [](const S& s) {
           return s.target.empty() ? success() : outcome_of(parse_target(s.target));
         }},
    {.field = &S::target_accuracy,
     .flag = "target-accuracy",
     .help = "Short for --target 'accuracy>=X' (0.86 for 86%); 0: none",
     .check =
         [](const S& s) {
           return must_be(s.target_accuracy >= 0 && s.target_accuracy <= 1,
                          "from 0 to 1 (0.86 for 86%)", s.target_accuracy);
         }},
    {.field = &S::patience,
     .flag = "patience",
     .help = "The run ends after this many versions that are no better by the main metric; 0: "
             "never"},
    {.field = &S::target_examples,
     .flag = "target-examples",
     .help = "Evaluations on fewer examples do not count for --target and --patience"},
    {.field = &S::norm_limit,
     .flag = "norm-limit",
     .help = "An update whose norm is more than this many times the median of its round does not "
             "count; 0: all count",
     .check = is_not_negative<&S::norm_limit>},
    {.field = &S::weight_cap,
     .flag = "weight-cap",
     .help = "A client counts with at most this many times the median of the clients' examples, "
             "however many it says it has; 0: no limit",
     .check =
         [](const S& s) {
           return must_be(s.weight_cap == 0 || (std::isfinite(s.weight_cap) && s.weight_cap >= 1),
                          "1 or more, or 0 for no limit", s.weight_cap);
         }},
    {.field = &S::keep_checkpoints,
     .flag = "keep-checkpoints",
     .help = "How many of the newest model versions are kept; 0: all"},
    {.field = &S::keep_best,
     .flag = "keep-best",
     .help =
         "Keep the best version by the main metric too: as evaluators measure it, or trainers in "
         "a run without evaluators"},
    {.field = &S::keep_updates,
     .flag = "keep-updates",
     .help = "Keep the updates of this many of the newest rounds, or of all, with the models that "
             "they began from: 'fl-server replay' proves with them what the server made of them",
     .check = [](const S& s) { return outcome_of(parse_kept_rounds(s.keep_updates)); }},
    {.field = &S::initial_weights,
     .flag = "initial-weights",
     .help = "Start from this safetensors file instead of weights made from the seed",
     .is_existing_file = true,
     .changeable = Changeable::before_first_model},
    {.field = &S::tensors, .key = "tensors"},
};

}  // namespace

RunSettingTable run_setting_table() { return RunSettingTable(table); }

}  // namespace fl::server
