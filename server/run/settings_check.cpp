// SPDX-License-Identifier: Apache-2.0
// Whether the settings of a run fit each other. What a value may be by itself, its row of the table
// says (settings_table.cpp).
#include "server/cohort/codec_choice.hpp"
#include "server/run/masked_settings.hpp"
#include "server/run/round_mode.hpp"
#include "server/run/schedule.hpp"
#include "server/run/settings_table.hpp"
#include "server/sums/aggregate_rule.hpp"
#include "server/sums/rules/rule_table.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace fl::server {

namespace {

Error unfit(std::string_view flag, std::string_view why) {
  return {Errc::invalid_input, fmt::format("--{} {}", flag, why)};
}

Result<void> check_amounts(const RunSettings& s) {
  if (s.deadline_s > 0 && s.local_seconds >= s.deadline_s) {
    return unfit("local-seconds",
                 fmt::format("is {}, and must be less than --deadline, which is {}",
                             s.local_seconds, s.deadline_s));
  }
  if (s.clients_per_round != 0 && s.clients_per_round < s.min_clients) {
    return unfit("clients-per-round", fmt::format("is {}, and must not be below --min-clients, "
                                                  "which is {}",
                                                  s.clients_per_round, s.min_clients));
  }
  if (s.clients_per_round != 0 && s.fraction != 1) {
    return unfit("fraction", fmt::format("is {}, and --clients-per-round {} contradicts it: give "
                                         "one of them",
                                         s.fraction, s.clients_per_round));
  }
  if (!s.target.empty() && s.target_accuracy > 0) {
    return unfit("target-accuracy", fmt::format("{} is short for --target 'accuracy>={}', and "
                                                "--target is there too: give one of them",
                                                s.target_accuracy, s.target_accuracy));
  }
  return {};
}

/// Clients refuse longer names (client/agent/joined_run.cpp).
Result<void> check_lengths(const RunSettings& s) {
  const std::pair<std::string_view, std::string_view> specs[] = {
      {"strategy", s.strategy}, {"optimizer", s.optimizer}, {"codec", s.codec}};
  for (const auto& [flag, spec] : specs) {
    if (spec.size() > limits::spec_bytes_max)
      return unfit(
          flag, fmt::format("has {} bytes; the limit is {}", spec.size(), limits::spec_bytes_max));
  }
  return {};
}

/// Checks whether model, strategy and local work fit each other.
Result<void> check_method(const RunSettings& s) {
  const auto strategy = parse_strategy(s.strategy).value();
  const Layout model = model_layout(s).value();
  if (model.elements() == 0)
    return unfit("model", fmt::format("{}: no tensor has an element: nothing to train", s.model));
  const auto layout = run_layout(model, *strategy);
  if (!layout) return layout.error().at(fmt::format("--strategy {}", s.strategy));
  const LocalSteps steps = parse_steps_schedule(s.local_steps_schedule).value();
  if (steps.shape != LocalSteps::Shape::constant && s.local_steps == 0) {
    return unfit("local-steps-schedule",
                 fmt::format("{} needs --local-steps, the most steps that a round takes",
                             s.local_steps_schedule));
  }
  if (s.proximal_mu > 0 && strategy->proximal_mu() > 0) {
    return unfit("proximal-mu", fmt::format("and --strategy {} both ask for a proximal term: give "
                                            "one of them",
                                            s.strategy));
  }
  return strategy->check(local_work(s, *strategy, 1, {}));
}

/// Checks whether strategy and local work allow the mode.
Result<void> check_mode(const RunSettings& s) {
  const RoundMode mode = parse_mode(s.mode).value();
  const auto strategy = parse_strategy(s.strategy).value();
  const auto no = [&](std::string_view why) {
    return unfit("mode", fmt::format("{}: {}", s.mode, why));
  };
  const bool remembers = strategy->local() != nullptr && strategy->local()->keeps_vector();
  if (mode.carries() && (remembers || !strategy->shared_vector().empty())) {
    return no(
        fmt::format("--strategy {} needs every update in its own round; use one of those that "
                    "keep nothing at the clients (fedavg, fedprox, fednova, fedavgm, fedadam …)",
                    s.strategy));
  }
  if (mode.is_async && s.over_select != 1)
    return no("--over-select is for synchronous rounds; here nobody waits for the slowest");
  if (mode.compensation > 0 && !parse_optimizer(s.optimizer).value().is_sgd())
    return no(fmt::format("compensate= needs --optimizer sgd, not {}", s.optimizer));
  if (mode.compensation > 0 && strategy->local() != nullptr) {
    return no(
        fmt::format("compensate= needs updates that are sums of gradients, which --strategy "
                    "{} does not send; fedavg, fedprox, fedavgm, fedadam … do",
                    s.strategy));
  }
  return {};
}

/// Checks whether strategy and mode allow each codec that clients may be asked for.
Result<void> check_codecs(const RunSettings& s) {
  const bool counts_signs = parse_strategy(s.strategy).value()->counts_signs();
  const bool carries = parse_mode(s.mode).value().carries();
  const auto ladder = parse_ladder(s.codec).value();
  for (const std::string& spec : ladder) {
    const auto codec = codec::parse_codec(spec).value();
    const auto names = codec->names();
    if (codec->is_delta() && counts_signs) {
      return unfit("codec",
                   "delta+ sends differences, and this strategy counts the signs of updates");
    }
    if (codec->is_delta() && carries) {
      return unfit("codec", fmt::format("delta+ needs every update in its own round, and --mode {} "
                                        "takes late ones",
                                        s.mode));
    }
    if (counts_signs && std::ranges::find(names, "ecuq") != names.end()) {
      return unfit("codec",
                   "ecuq gives zeros a random sign, and this strategy counts signs: use "
                   "terngrad,clip=0, which keeps them exactly, or sign, which has one bit");
    }
  }
  return {};
}

bool has_selector(const codec::Codec& codec) {
  const auto names = codec.names();
  return std::ranges::any_of(codec::codec_rows(), [&](const codec::CodecRow& row) {
    return row.parse_selector != nullptr && std::ranges::find(names, row.name) != names.end();
  });
}

/// Checks whether mode, strategy and numbers of clients allow a robust rule.
Result<void> check_robust_round(const RunSettings& s, const AggregateRule& rule) {
  const auto no = [&](std::string_view why) {
    return unfit("aggregate", fmt::format("{}: {}", s.aggregate, why));
  };
  const RoundMode mode = parse_mode(s.mode).value();
  if (mode.is_async || mode.carries()) {
    return no(
        fmt::format("a robust rule compares the updates of one version, and --mode {} mixes those "
                    "of several: use --mode sync",
                    s.mode));
  }
  const auto strategy = parse_strategy(s.strategy).value();
  if (strategy->adds_what_clients_see() || strategy->counts_steps() || strategy->counts_signs()) {
    return no(
        fmt::format("--strategy {} needs the mean, or other sums over the clients beside it; use "
                    "one that needs only one update a round (fedavg, fedprox, fedavgm, fedadam, "
                    "ditto …)",
                    s.strategy));
  }
  if (s.min_clients < rule.least_updates()) {
    return no(
        fmt::format("it needs {} updates, and a round may close with --min-clients {}: "
                    "raise that",
                    rule.least_updates(), s.min_clients));
  }
  const std::uint32_t asked = std::max(s.min_clients, s.clients_per_round);
  if (asked > limits::robust_updates_max) {
    return no(
        fmt::format("it takes at most {} updates in a round, not {}: lower --min-clients or "
                    "--clients-per-round",
                    limits::robust_updates_max, asked));
  }
  return {};
}

/// Checks whether all other settings allow the rule of --aggregate.
Result<void> check_aggregate(const RunSettings& s) {
  const AggregateRule rule = parse_aggregate(s.aggregate).value();
  if (rule.is_mean()) return {};
  FL_CHECK(check_robust_round(s, rule));
  const auto layout = run_layout(model_layout(s).value(), *parse_strategy(s.strategy).value());
  const auto ladder = parse_ladder(s.codec).value();
  for (const std::string& spec : ladder) {
    const auto codec = codec::parse_codec(spec).value();
    if (!codec->summed_sketches(layout->all).of_tensor.empty()) {
      return unfit("aggregate",
                   fmt::format("{}: the sketches of --codec {} are right only in a sum; use "
                               "countsketch with recovery=own, or another codec",
                               s.aggregate, spec));
    }
    if (rule.is_by_coordinate() && has_selector(*codec)) {
      return unfit("aggregate",
                   fmt::format("{}: with --codec {} most clients send nothing of a coordinate, and "
                               "the median of their zeros is 0; use a codec that sends all "
                               "values (ecuq:4, qsgd:127, none …), or {}",
                               s.aggregate, spec, weighing_rule_names()));
    }
  }
  return {};
}

}  // namespace

Result<void> check_settings(const RunSettings& settings) {
  FL_CHECK(run_setting_table().check_each(settings));
  FL_CHECK(check_amounts(settings));
  FL_CHECK(check_lengths(settings));
  FL_CHECK(check_method(settings));
  FL_CHECK(check_mode(settings));
  FL_CHECK(check_codecs(settings));
  FL_CHECK(check_aggregate(settings));
  return check_masked(settings);
}

}  // namespace fl::server
