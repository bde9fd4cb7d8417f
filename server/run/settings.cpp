#include "server/run/settings.hpp"

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/run/round_mode.hpp"
#include "shared/algorithm/schedule.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/params/model_table.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

namespace fl {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(
    RunSettings, model, strategy, seed, rounds, min_clients, clients_per_round, fraction, sampling,
    mode, over_select, deadline_s, local_epochs, local_steps, local_steps_schedule, local_seconds,
    batch_size, accumulate, optimizer, lr, lr_schedule, momentum, weight_decay, proximal_mu, codec,
    downlink_codec, target_accuracy, patience, keep_checkpoints, initial_weights, tensors)

std::string to_json(const RunSettings& settings) { return json_text(nlohmann::json(settings)); }

Result<RunSettings> settings_from_json(const std::string& json) {
  const auto parsed = parse_json(json);
  if (!parsed.is_object())
    return Error(Errc::corrupt, "the stored settings of the run are no JSON object");
  try {
    return parsed.get<RunSettings>();
  } catch (const nlohmann::json::exception& error) {
    return Error(Errc::corrupt, fmt::format("the stored settings of the run: {}", error.what()));
  }
}

Result<void> take_tensors(Files& files, RunSettings& settings) {
  if (!settings.model.starts_with(custom_prefix)) return {};
  const auto take = [&]() -> Result<void> {
    const std::string_view name = std::string_view(settings.model).substr(custom_prefix.size());
    const auto is_right = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    if (name.empty() || name.size() > limits::model_name_bytes_max ||
        !std::ranges::all_of(name, is_right)) {
      return Error(Errc::invalid_input,
                   fmt::format("a name is of letters, digits, - and _, up to {} of them",
                               limits::model_name_bytes_max));
    }
    if (settings.initial_weights.empty())
      return Error(Errc::invalid_input,
                   "its tensors are those of --initial-weights FILE, which is wanted with it");
    FL_TRY(const auto file, files.open(settings.initial_weights, OpenMode::read));
    auto info = read_safetensors_header(*file);
    if (!info) return info.error().at(settings.initial_weights);
    // In a checkpoint of ours a shared vector may lie beside the model.
    const bool is_ours = std::ranges::find(info->metadata, "run", &Metadata::value_type::first) !=
                         info->metadata.end();
    std::set<std::string_view> names;
    for (const auto& tensor : info->layout.tensors()) names.insert(tensor.name);
    settings.tensors.clear();
    for (const auto& [tensor, shape, offset, elements] : info->layout.tensors()) {
      if (is_ours && names.contains(parameter_of_shared(tensor))) continue;
      settings.tensors.emplace_back(tensor, shape);
    }
    std::ranges::sort(settings.tensors, {}, [](const auto& tensor) {
      return std::pair(is_statistic(tensor.first), tensor.first);
    });
    return {};
  };
  if (auto taken = take(); !taken) return taken.error().at("--model " + settings.model);
  return {};
}

Result<Layout> model_layout(const RunSettings& settings) {
  if (!settings.model.starts_with(custom_prefix)) return builtin_layout(settings.model);
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : settings.tensors) specs.push_back({name, shape});
  return Layout::make(specs);
}

Result<std::shared_ptr<const Codec>> parse_downlink_codec(const std::string& spec,
                                                          std::uint32_t round) {
  if (spec == "none" || spec == "none+ef") return parse_codec("none");  // Loses nothing.
  FL_TRY(auto codec, parse_codec(spec, round));
  if (codec->is_delta()) {
    return Error(
        Errc::invalid_input,
        fmt::format("'{}': steps of the model are differences already: without delta+", spec));
  }
  if (codec->momentum() > 0) {
    return Error(Errc::invalid_input, fmt::format("'{}': momentum is for gradients, which steps of "
                                                  "the model are not: +ef instead",
                                                  spec));
  }
  if (codec->error_feedback()) return codec;
  return parse_codec(spec + "+ef", round);
}

TrainSettings local_work(const RunSettings& settings, const Strategy& strategy, Round round,
                         std::span<const double> losses) {
  TrainSettings work;
  work.round = round;
  work.local_epochs = settings.local_epochs;
  if (settings.local_steps > 0) {
    work.local_steps = parse_steps_schedule(settings.local_steps_schedule)
                           .value()
                           .at(round, settings.local_steps, losses);
  }
  work.local_seconds = settings.local_seconds;
  if (work.local_epochs == 0 && work.local_steps == 0 && work.local_seconds == 0)
    work.local_epochs = 1;
  work.batch_size = settings.batch_size;
  work.accumulate = settings.accumulate;
  work.optimizer = parse_optimizer(settings.optimizer).value();
  work.lr = settings.lr * parse_schedule(settings.lr_schedule).value().at(round, settings.rounds);
  work.momentum = settings.momentum;
  work.weight_decay = settings.weight_decay;
  work.proximal_mu = std::max(settings.proximal_mu, strategy.proximal_mu());
  return work;
}

namespace {

/// Whether model, strategy and local work fit each other.
Result<void> check_method(const RunSettings& s) {
  const auto model = model_layout(s);
  if (!model) return model.error().at("--model");
  const auto parsed = parse_strategy(s.strategy);
  if (!parsed) return parsed.error().at("--strategy");
  const auto& strategy = *parsed;
  auto layout = run_layout(*model, *strategy);
  if (!layout) return layout.error().at(fmt::format("--strategy {}", s.strategy));
  if (auto optimizer = parse_optimizer(s.optimizer); !optimizer)
    return optimizer.error().at("--optimizer");
  if (auto schedule = parse_schedule(s.lr_schedule); !schedule)
    return schedule.error().at("--lr-schedule");
  const auto steps = parse_steps_schedule(s.local_steps_schedule);
  if (!steps) return steps.error().at("--local-steps-schedule");
  if (steps->shape != LocalSteps::Shape::constant && s.local_steps == 0) {
    return Error(Errc::invalid_input,
                 fmt::format("--local-steps-schedule {} needs --local-steps, the most that a round "
                             "takes",
                             s.local_steps_schedule));
  }
  if (s.proximal_mu > 0 && strategy->proximal_mu() > 0) {
    return Error(Errc::invalid_input,
                 fmt::format("--proximal-mu and --strategy {} both ask for a proximal term: give "
                             "one of them",
                             s.strategy));
  }
  return strategy->check(local_work(s, *strategy, 1, {}));
}

/// Whether updates may come together in this way.
Result<void> check_mode(const RunSettings& s) {
  const auto parsed = parse_mode(s.mode);
  if (!parsed) return parsed.error().at("--mode");
  const auto bad = [&](std::string_view why) {
    return Error(Errc::invalid_input, fmt::format("--mode {}: {}", s.mode, why));
  };
  const auto strategy = parse_strategy(s.strategy).value();
  const bool remembers = strategy->local() != nullptr && strategy->local()->keeps_vector();
  if (parsed->carries() && (remembers || !strategy->shared_vector().empty())) {
    return bad(
        fmt::format("--strategy {} needs every update to be of its own round; those that keep "
                    "nothing at the clients fit (fedavg, fedprox, fednova, fedavgm, fedadam …)",
                    s.strategy));
  }
  if (parsed->is_async && s.over_select != 1)
    return bad("--over-select is for synchronous rounds; here nobody waits for the slowest");
  if (parsed->compensation > 0 && !parse_optimizer(s.optimizer).value().is_sgd())
    return bad(fmt::format("compensate= needs --optimizer sgd, not {}", s.optimizer));
  if (parsed->compensation > 0 && strategy->local() != nullptr)
    return bad(
        fmt::format("compensate= takes an update for a sum of gradients, which --strategy {} "
                    "does not send; fedavg, fedprox, fedavgm, fedadam … do",
                    s.strategy));
  return {};
}

}  // namespace

Result<void> check_settings(const RunSettings& s) {
  const auto bad = [](std::string_view flag, std::string_view why) {
    return Error(Errc::invalid_input, fmt::format("--{} {}", flag, why));
  };
  if (s.rounds == 0) return bad("rounds", "must be 1 or more");
  if (s.min_clients == 0) return bad("min-clients", "must be 1 or more");
  if (!(s.fraction > 0 && s.fraction <= 1)) return bad("fraction", "must be above 0 and at most 1");
  if (s.over_select != 0 && !(s.over_select >= 1 && s.over_select <= 100))
    return bad("over-select", "must be from 1 to 100, or 0 to adapt");
  if (!(s.deadline_s >= 0 && s.deadline_s <= 1e7))
    return bad("deadline", "must be from 0 to 1e7 seconds");
  if (!(s.local_seconds >= 0 && s.local_seconds <= local_seconds_max))
    return bad("local-seconds", fmt::format("must be from 0 to {:g}", local_seconds_max));
  if (s.deadline_s > 0 && s.local_seconds >= s.deadline_s) {
    return bad("local-seconds", fmt::format("is {}, which --deadline {} does not allow",
                                            s.local_seconds, s.deadline_s));
  }
  if (s.batch_size == 0) return bad("batch-size", "must be 1 or more");
  if (s.accumulate == 0) return bad("accumulate", "must be 1 or more");
  if (!(std::isfinite(s.lr) && s.lr > 0)) return bad("lr", "must be above 0");
  if (!(s.momentum >= 0 && s.momentum < 1))
    return bad("momentum", "must be at least 0 and below 1");
  if (!(std::isfinite(s.weight_decay) && s.weight_decay >= 0))
    return bad("weight-decay", "must be 0 or more");
  if (!(std::isfinite(s.proximal_mu) && s.proximal_mu >= 0))
    return bad("proximal-mu", "must be 0 or more");
  if (!(s.target_accuracy >= 0 && s.target_accuracy <= 1)) {
    return bad("target-accuracy", "must be from 0 to 1 (0.86 for 86%)");
  }
  if (s.clients_per_round != 0 && s.clients_per_round < s.min_clients) {
    return bad("clients-per-round",
               fmt::format("is {}, below --min-clients {}", s.clients_per_round, s.min_clients));
  }
  if (s.clients_per_round != 0 && s.fraction != 1) {
    return bad("fraction", fmt::format("is {}, and --clients-per-round {} asks for something else: "
                                       "give one of them",
                                       s.fraction, s.clients_per_round));
  }
  FL_CHECK(check_method(s));
  FL_CHECK(check_mode(s));
  if (auto sampler = parse_sampler(s.sampling); !sampler) return sampler.error().at("--sampling");
  const auto ladder = parse_ladder(s.codec);
  if (!ladder) return ladder.error().at("--codec");
  const bool counts_signs = parse_strategy(s.strategy).value()->counts_signs();
  for (const std::string& spec : *ladder) {
    const auto codec = parse_codec(spec).value();
    const auto names = codec->names();
    if (codec->is_delta() && counts_signs)
      return bad("codec",
                 "delta+ sends differences, and this strategy counts the signs of updates");
    if (codec->is_delta() && parse_mode(s.mode).value().carries())
      return bad("codec", fmt::format("delta+ wants every update in its own round, and --mode {} "
                                      "takes late ones",
                                      s.mode));
    if (counts_signs && std::ranges::find(names, "ecuq") != names.end())
      return bad("codec",
                 "ecuq gives a 0 a sign by chance, and this strategy counts signs: "
                 "terngrad,clip=0 carries them exactly, sign in one bit");
  }
  if (auto codec = parse_downlink_codec(s.downlink_codec); !codec)
    return codec.error().at("--downlink-codec");
  return {};
}

}  // namespace fl
