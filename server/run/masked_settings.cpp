// SPDX-License-Identifier: Apache-2.0
#include "server/run/masked_settings.hpp"

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/run/round_mode.hpp"
#include "server/sums/aggregate_rule.hpp"
#include "shared/base/spec/spec_options.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/model_table.hpp"
#include "shared/secure/cohort.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace fl::server {

namespace {

constexpr std::string_view by_examples_word = "examples";
constexpr std::string_view equal_word = "equal";
constexpr std::string_view masked_codec = "lanes:8";
constexpr std::string_view codecs_that_fit =
    "use --codec lanes:8, or another lanes:B or randk:F+lanes:B, each also with +ef";

Error unmaskable(std::string_view setting, std::string_view why, std::string_view instead) {
  return {Errc::invalid_input,
          fmt::format("--{} does not go with --secure-aggregation: {}; {}", setting, why, instead)};
}

Result<void> check_masked_rounds(const RunSettings& s) {
  const RoundMode mode = parse_mode(s.mode).value();
  if (mode.is_async || mode.carries()) {
    return unmaskable(fmt::format("mode {}", s.mode),
                      "an update that comes late can't be added to the others' sum, so the server "
                      "would have to read it",
                      "use --mode sync");
  }
  if (!parse_aggregate(s.aggregate).value().is_mean()) {
    return unmaskable(fmt::format("aggregate {}", s.aggregate),
                      "the rule compares single updates, and the server sees their sum only",
                      "use --aggregate mean");
  }
  if (parse_sampler(s.sampling).value().row->needs_claims) {
    const auto name_that_fits = [](const SamplerRow& row) {
      return row.needs_claims ? std::string_view() : row.name;
    };
    return unmaskable(
        fmt::format("sampling {}", s.sampling),
        "it chooses clients by the numbers of examples or the losses that each would have to tell "
        "the server",
        fmt::format("use --sampling {}", alternatives(sampler_rows(), name_that_fits)));
  }
  if (s.weights == by_examples_word) {
    return unmaskable("weights examples",
                      "the server would have to read how many examples each client has trained",
                      "use --weights equal");
  }
  return {};
}

Result<void> check_masked_cohort(const RunSettings& s) {
  using secure::cohort_max;
  using secure::cohort_min;
  if (s.min_clients < cohort_min) {
    return unmaskable(fmt::format("min-clients {}", s.min_clients),
                      "of two clients each would learn the other's update from the sum",
                      fmt::format("use --min-clients {} or more", cohort_min));
  }
  const std::string most = fmt::format("everybody masks with everybody, {} at most", cohort_max);
  if (s.min_clients > cohort_max) {
    return unmaskable(fmt::format("min-clients {}", s.min_clients), most,
                      fmt::format("use --min-clients {} or less", cohort_max));
  }
  if (s.clients_per_round > cohort_max) {
    return unmaskable(fmt::format("clients-per-round {}", s.clients_per_round), most,
                      fmt::format("use --clients-per-round {} or less", cohort_max));
  }
  return {};
}

Result<void> check_masked_codec(const RunSettings& s) {
  const auto ladder = parse_ladder(s.codec).value();
  if (ladder.size() > 1) {
    return unmaskable(fmt::format("codec {}", s.codec),
                      "clients would use different codecs, and only updates that are coded alike "
                      "can be added up unread",
                      codecs_that_fit);
  }
  const auto codec = codec::parse_codec(ladder.front()).value();
  if (codec->is_delta()) {
    return unmaskable(fmt::format("codec {}", s.codec),
                      "to a difference the server must add the client's update before, which it "
                      "would have to read",
                      codecs_that_fit);
  }
  const Layout layout =
      run_layout(model_layout(s).value(), *parse_strategy(s.strategy).value()).value().all;
  const auto runs = codec->lane_runs(layout, codec::LaneSteps(layout.tensors().size()));
  if (runs) return {};
  const auto has_statistic = std::ranges::any_of(
      layout.tensors(), [](const Layout::Tensor& tensor) { return is_statistic(tensor.name); });
  if (has_statistic) {
    return unmaskable(fmt::format("model {}", s.model), runs.error().message(),
                      "use a model without BatchNorm and without scaling (scale=none), or leave "
                      "these tensors to each client by personal= of --strategy");
  }
  return unmaskable(fmt::format("codec {}", s.codec), runs.error().message(), codecs_that_fit);
}

Result<void> check_masked_method(const RunSettings& s) {
  const auto strategy = parse_strategy(s.strategy).value();
  const std::string name = fmt::format("strategy {}", s.strategy);
  constexpr std::string_view others = "use another one (fedavg, fedprox, fedavgm, fedadam …)";
  // Of a method with a shared vector (SCAFFOLD) only the clients count steps.
  if (strategy->counts_steps() && strategy->shared_vector().empty()) {
    return unmaskable(name, "the server would have to read how many steps each client has taken",
                      others);
  }
  if (strategy->counts_signs()) {
    return unmaskable(name, "the server would have to read the signs of single updates", others);
  }
  if (builtin_summaries(s.model) > 0 && s.initial_weights.empty()) {
    return unmaskable(fmt::format("model {}", s.model),
                      "clients would send mean and variance of their columns in the clear, for the "
                      "scaling of the initial model",
                      "use scale=none, with data that the sites have scaled, or --initial-weights");
  }
  return {};
}

Result<void> check_masked_records(const RunSettings& s) {
  if (s.norm_limit != RunSettings().norm_limit && s.norm_limit != 0) {
    return unmaskable(fmt::format("norm-limit {}", s.norm_limit),
                      "the server would have to read the norms of single updates",
                      "leave it out: what a masked update adds to a value is bounded by its lane");
  }
  if (parse_kept_rounds(s.keep_updates).value() > 0) {
    return unmaskable(fmt::format("keep-updates {}", s.keep_updates),
                      "masked rounds can't be replayed yet", "use --keep-updates none");
  }
  return {};
}

}  // namespace

Result<std::optional<MaskedSettings>> parse_secure_aggregation(std::string_view spec) {
  FL_TRY(auto options, SpecOptions::parse(spec));
  const bool is_on = options.name() == "on";
  if (!is_on && options.name() != "off")
    return Error(Errc::invalid_input, fmt::format("'{}': it must be off or on", options.name()));
  MaskedSettings masked;
  if (is_on) {
    masked.attempts = options.count("attempts", masked.attempts, 1);
    masked.step_seconds =
        options.number("step-seconds", masked.step_seconds, 1, MaskedSettings::step_seconds_max);
  }
  FL_CHECK(options.finish());
  if (masked.attempts > MaskedSettings::attempts_max) {
    return Error(Errc::invalid_input, fmt::format("attempts={}: it must be {} at most",
                                                  masked.attempts, MaskedSettings::attempts_max));
  }
  return is_on ? std::optional(masked) : std::nullopt;
}

Result<void> check_weights(std::string_view weights) {
  if (weights.empty() || weights == by_examples_word || weights == equal_word) return {};
  return Error(Errc::invalid_input, fmt::format("it must be examples or equal, not '{}'", weights));
}

bool weighs_equally(const RunSettings& settings) {
  if (!settings.weights.empty()) return settings.weights == equal_word;
  return parse_secure_aggregation(settings.secure_aggregation).value().has_value();
}

std::string set_masked_defaults(RunSettings& settings, const std::set<std::string>& given) {
  const auto masked = parse_secure_aggregation(settings.secure_aggregation);
  if (!masked || !*masked) return "";
  const RunSettings usual;
  std::vector<std::string> set;
  if (!given.contains("codec") && settings.codec == usual.codec) {
    settings.codec = masked_codec;
    set.push_back(fmt::format("--codec {}", settings.codec));
  }
  if (!given.contains("weights") && settings.weights == usual.weights) {
    settings.weights = equal_word;
    set.push_back(fmt::format("--weights {}", settings.weights));
  }
  if (!given.contains("min-clients") && settings.min_clients == usual.min_clients) {
    settings.min_clients = secure::cohort_min;
    set.push_back(fmt::format("--min-clients {}", settings.min_clients));
  }
  set.emplace_back("no --norm-limit");
  return fmt::format("masked run: {}", fmt::join(set, ", "));
}

Result<void> check_masked(const RunSettings& settings) {
  if (!parse_secure_aggregation(settings.secure_aggregation).value()) return {};
  FL_CHECK(check_masked_rounds(settings));
  FL_CHECK(check_masked_cohort(settings));
  FL_CHECK(check_masked_method(settings));
  FL_CHECK(check_masked_codec(settings));
  return check_masked_records(settings);
}

}  // namespace fl::server
