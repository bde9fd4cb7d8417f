// SPDX-License-Identifier: Apache-2.0
// The settings of a run, one row each. docs/design/adding-a-setting.md says how to add one.
#include "server/run/settings_table.hpp"

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/run/masked_settings.hpp"
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

namespace fl::server {

namespace {

using S = RunSettings;
using Work = TrainSettings;

// The headings of forms.
constexpr std::string_view the_run = "The run";
constexpr std::string_view clients = "Clients and rounds";
constexpr std::string_view training = "Training at the clients";
constexpr std::string_view traffic = "Bytes";
constexpr std::string_view goal = "The goal";
constexpr std::string_view robustness = "Clients that harm";
constexpr std::string_view privacy = "What the server may read";
constexpr std::string_view records = "What is kept";

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
     .group = the_run,
     .is_usual = true,
     .help = "How many rounds the run has",
     .range = {.least = 1}},
    {.field = &S::model,
     .flag = "model",
     .group = the_run,
     .is_usual = true,
     .help = "{}; or custom:NAME for a model that your own clients know by this name, with the "
             "tensors of --initial-weights",
     .help_names = builtin_model_names,
     .changeable = Changeable::not_at_all,
     .check = [](const S& s) { return outcome_of(model_layout(s)); }},
    {.field = &S::strategy,
     .flag = "strategy",
     .group = the_run,
     .is_usual = true,
     .help = "The federated method, as NAME:KEY=VALUE,… ('fl-server strategies' lists them)",
     .changeable = Changeable::before_first_model,
     .check = [](const S& s) { return outcome_of(parse_strategy(s.strategy)); }},
    {.field = &S::min_clients,
     .flag = "min-clients",
     .group = clients,
     .is_usual = true,
     .help = "A round starts with this many clients, and closes with this many updates at least",
     .range = {.least = 1}},
    {.field = &S::clients_per_round,
     .flag = "clients-per-round",
     .group = clients,
     .help = "Clients sampled in each round; 0: --fraction decides"},
    {.field = &S::fraction,
     .flag = "fraction",
     .group = clients,
     .help = "Part of the connected clients that is sampled in each round",
     .range = {.most = 1, .is_above = true}},
    {.field = &S::sampling,
     .flag = "sampling",
     .group = clients,
     .help = "How clients are sampled: {}",
     .help_names = [] { return alternatives(sampler_rows(), &SamplerRow::usage); },
     .check = [](const S& s) { return outcome_of(parse_sampler(s.sampling)); }},
    {.field = &S::weights,
     .flag = "weights",
     .group = clients,
     .help = "How much a client counts in a round: by its number of examples (examples) or once "
             "(equal, which a masked run has)",
     .default_shown = "examples",
     .changeable = Changeable::before_first_model,
     .check = [](const S& s) { return check_weights(s.weights); }},
    {.field = &S::mode,
     .flag = "mode",
     .group = clients,
     .help = "sync[:late=N] or async[:buffer=K,late=N,weight=sqrt,ahead=N,sync=T,compensate=L]",
     .changeable = Changeable::before_first_model,
     .check = [](const S& s) { return outcome_of(parse_mode(s.mode)); }},
    {.field = &S::over_select,
     .flag = "over-select",
     .group = clients,
     .help = "Asks this many times as many clients as the round needs; 0: as many more as were "
             "slow in earlier rounds",
     .range = {.least = 1, .most = 100, .or_zero = true, .hint = ", or 0 to adapt"}},
    {.field = &S::deadline_s,
     .flag = "deadline",
     .group = clients,
     .help = "After this many seconds a round closes with the updates it has. In an asynchronous "
             "run: the task is given to another client. 0: never",
     .key = "deadline_s",
     .range = {.least = limits::deadline_s_min,
               .most = 1e7,
               .or_zero = true,
               .hint = " seconds, or 0 for none"}},
    {.field = &S::local_epochs,
     .flag = "local-epochs",
     .group = training,
     .is_usual = true,
     .help = "Passes over the local data in a round",
     .default_shown = "1",
     .flag_min = 1,
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.local_epochs = epochs_of(s); }},
    {.field = &S::local_steps,
     .flag = "local-steps",
     .group = training,
     .help = "Mini-batch steps in a round, instead of epochs; 0: epochs",
     .into_work = [](const S& s, const WorkRound& at,
                     Work& w) { w.local_steps = steps_of(s, at); }},
    {.field = &S::local_steps_schedule,
     .flag = "local-steps-schedule",
     .group = training,
     .help = "How many of --local-steps each round takes: constant, warmup:rounds=10 (from 1 to "
             "all), post-local:from=10 (1 before that round) or adaptive (fewer as the loss falls)",
     .check = [](const S& s) { return outcome_of(parse_steps_schedule(s.local_steps_schedule)); }},
    {.field = &S::local_seconds,
     .flag = "local-seconds",
     .group = training,
     .help = "Seconds to train in a round, by the client's clock. A client takes the steps that "
             "fit, at least one, and at most --local-steps or --local-epochs if given; 0: no limit",
     .range = {.most = local_seconds_max},
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.local_seconds = s.local_seconds; }},
    {.field = &S::batch_size,
     .flag = "batch-size",
     .group = training,
     .is_usual = true,
     .help = "Examples in a mini-batch",
     .range = {.least = 1, .most = limits::batch_size_max},
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.batch_size = s.batch_size; }},
    {.field = &S::accumulate,
     .flag = "accumulate",
     .group = training,
     .help = "Mini-batches whose gradients make one step. It works like a batch that is this many "
             "times as large, in the memory of one",
     .range = {.least = 1, .most = limits::accumulate_max},
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.accumulate = s.accumulate; }},
    {.field = &S::optimizer,
     .flag = "optimizer",
     .group = training,
     .help = "The clients' optimizer: {}",
     .help_names = [] { return alternatives(optimizer_rows(), &OptimizerRow::usage); },
     .check = [](const S& s) { return outcome_of(parse_optimizer(s.optimizer)); },
     .into_work = [](const S& s, const WorkRound&,
                     Work& w) { w.optimizer = parse_optimizer(s.optimizer).value(); }},
    {.field = &S::lr,
     .flag = "lr",
     .group = training,
     .is_usual = true,
     .help = "The clients' learning rate",
     .range = {.is_above = true},
     .into_work = [](const S& s, const WorkRound& at, Work& w) { w.lr = rate_of(s, at); }},
    {.field = &S::lr_schedule,
     .flag = "lr-schedule",
     .group = training,
     .help =
         "The learning rate by round: constant, cosine[:floor=0] or step[:every=10,factor=0.1]; "
         "each also takes warmup=N, as in constant:warmup=5",
     .check = [](const S& s) { return outcome_of(parse_schedule(s.lr_schedule)); }},
    {.field = &S::momentum,
     .flag = "momentum",
     .group = training,
     .help = "Momentum of sgd and nesterov; it begins at zero in every round",
     .range = {.most = 1, .is_below = true},
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.momentum = s.momentum; }},
    {.field = &S::weight_decay,
     .flag = "weight-decay",
     .group = training,
     .help = "The clients' weight decay",
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.weight_decay = s.weight_decay; }},
    {.field = &S::clip_norm,
     .flag = "clip-norm",
     .group = training,
     .help = "Shorten the gradient of each step to this length where it is longer, over all "
             "parameters together; 0: never",
     .into_work = [](const S& s, const WorkRound&, Work& w) { w.clip_norm = s.clip_norm; }},
    {.field = &S::proximal_mu,
     .flag = "proximal-mu",
     .group = training,
     .help = "How strongly clients are pulled towards the global model, with any strategy; the "
             "same as mu of fedprox",
     .into_work =
         [](const S& s, const WorkRound& at, Work& w) {
           w.proximal_mu = std::max(s.proximal_mu, at.strategy.proximal_mu());
         }},
    {.field = &S::codec,
     .flag = "codec",
     .group = traffic,
     .is_usual = true,
     .help = "How clients code their updates ('fl-server codecs' lists them; none: fp32), or "
             "auto[:FINEST|…|COARSEST]: each client uses the finest that its connection sends in "
             "time",
     .check = [](const S& s) { return outcome_of(parse_ladder(s.codec)); }},
    {.field = &S::downlink_codec,
     .flag = "downlink-codec",
     .group = traffic,
     .help = "How the server codes model steps, for clients that have the previous version",
     .check = [](const S& s) { return outcome_of(parse_downlink_codec(s.downlink_codec)); }},
    {.field = &S::aggregate,
     .flag = "aggregate",
     .group = robustness,
     .help = "How a round's updates are combined: mean, or a rule that a few malicious clients "
             "can't steer: {}; each but mean also as nnm+RULE",
     .help_names = robust_rule_usages,
     .check = [](const S& s) { return outcome_of(parse_aggregate(s.aggregate)); }},
    {.field = &S::secure_aggregation,
     .flag = "secure-aggregation",
     .group = privacy,
     .help = "off, or on[:attempts=3,step-seconds=60]: clients mask their updates, so that the "
             "server can add them up and read none; it needs --members and --codec lanes:B",
     .changeable = Changeable::before_first_model,
     .check =
         [](const S& s) { return outcome_of(parse_secure_aggregation(s.secure_aggregation)); }},
    {.field = &S::seed,
     .flag = "seed",
     .group = the_run,
     .help = "Seed of the initial weights, the sampling and the shuffles",
     .default_shown = "random",
     .changeable = Changeable::not_at_all},
    {.field = &S::metric,
     .flag = "metric",
     .group = goal,
     .help = "Name of the run's main metric, which --patience follows and tables show; \"loss\" is "
             "one too. Without it: the --target's, or the first that the trainer reports",
     .check = [](const S& s) { return check_main_metric(s.metric); }},
    {.field = &S::target,
     .flag = "target",
     .group = goal,
     .help = "The run ends once evaluators measure this, for example 'accuracy>=0.86', "
             "'perplexity<=20' or 'loss<=0.3'",
     .check =
         [](const S& s) {
           return s.target.empty() ? success() : outcome_of(parse_target(s.target));
         }},
    {.field = &S::target_accuracy,
     .flag = "target-accuracy",
     .group = goal,
     .help = "Short for --target 'accuracy>=X' (0.86 for 86%); 0: none",
     .range = {.most = 1, .hint = " (0.86 for 86%)"}},
    {.field = &S::patience,
     .flag = "patience",
     .group = goal,
     .help = "The run ends after this many versions that are no better by the main metric; 0: "
             "never"},
    {.field = &S::target_examples,
     .flag = "target-examples",
     .group = goal,
     .help = "Evaluations on fewer examples do not count for --target and --patience"},
    {.field = &S::norm_limit,
     .flag = "norm-limit",
     .group = robustness,
     .help = "An update whose norm is more than this many times the median of its round does not "
             "count; 0: all count"},
    {.field = &S::weight_cap,
     .flag = "weight-cap",
     .group = robustness,
     .help = "A client counts with at most this many times the median of the clients' examples, "
             "however many it says it has; 0: no limit",
     .range = {.least = 1, .or_zero = true, .hint = ", or 0 for no limit"}},
    {.field = &S::keep_checkpoints,
     .flag = "keep-checkpoints",
     .group = records,
     .help = "How many of the newest model versions are kept; 0: all"},
    {.field = &S::keep_best,
     .flag = "keep-best",
     .group = records,
     .help =
         "Keep the best version by the main metric too: as evaluators measure it, or trainers in "
         "a run without evaluators"},
    {.field = &S::keep_updates,
     .flag = "keep-updates",
     .group = records,
     .help = "Keep the updates of this many of the newest rounds, or of all, with the models that "
             "they began from: 'fl-server replay' proves with them what the server made of them",
     .check = [](const S& s) { return outcome_of(parse_kept_rounds(s.keep_updates)); }},
    {.field = &S::initial_weights,
     .flag = "initial-weights",
     .group = the_run,
     .help = "Start from this safetensors file instead of weights made from the seed",
     .is_existing_file = true,
     .changeable = Changeable::before_first_model},
    {.field = &S::tensors, .key = "tensors"},
};

}  // namespace

RunSettingTable run_setting_table() { return RunSettingTable(table); }

}  // namespace fl::server
