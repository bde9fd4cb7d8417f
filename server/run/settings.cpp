// SPDX-License-Identifier: Apache-2.0
#include "server/run/settings.hpp"

#include "server/run/settings_table.hpp"
#include "shared/base/limits.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/model_table.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <system_error>

namespace fl::server {

std::string to_json(const RunSettings& settings) { return run_setting_table().to_json(settings); }

Result<RunSettings> settings_from_json(const std::string& json) {
  auto settings = run_setting_table().from_json(json);
  if (!settings) return settings.error().at("the stored settings of the run");
  return settings;
}

Result<void> take_tensors(Files& files, RunSettings& settings) {
  if (!settings.model.starts_with(custom_prefix)) return {};
  const auto take = [&]() -> Result<void> {
    const std::string_view name = std::string_view(settings.model).substr(custom_prefix.size());
    const auto is_right = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
    if (name.empty() || name.size() > limits::model_name_bytes_max ||
        !std::ranges::all_of(name, is_right)) {
      return Error(Errc::invalid_input,
                   fmt::format("NAME is made of letters, digits, - and _, at most {} of them",
                               limits::model_name_bytes_max));
    }
    if (settings.initial_weights.empty())
      return Error(Errc::invalid_input,
                   "give --initial-weights FILE too: the tensors of FILE are those of the model");
    FL_TRY(const auto file, files.open(settings.initial_weights, OpenMode::read));
    auto info = read_safetensors_header(*file);
    if (!info) return info.error().at(settings.initial_weights);
    // A checkpoint of ours may hold a shared vector (a control variate) beside the model.
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

Result<std::shared_ptr<const codec::Codec>> parse_downlink_codec(const std::string& spec,
                                                                 std::uint32_t round) {
  if (spec == "none" || spec == "none+ef")
    return codec::parse_codec("none");  // This codec loses nothing.
  FL_TRY(auto codec, codec::parse_codec(spec, round));
  if (codec->is_delta()) {
    return Error(
        Errc::invalid_input,
        fmt::format("'{}': steps of the model are differences already; leave out delta+", spec));
  }
  if (codec->momentum() > 0) {
    return Error(Errc::invalid_input,
                 fmt::format("'{}': momentum is for gradients, and steps of the "
                             "model are none; use +ef instead of +dgc",
                             spec));
  }
  if (codec->error_feedback()) return codec;
  return codec::parse_codec(spec + "+ef", round);
}

Result<Round> parse_kept_rounds(std::string_view text) {
  if (text == "none") return Round{0};
  if (text == "all") return all_rounds;
  Round rounds = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), rounds);
  const bool is_number = failure == std::errc() && end == text.data() + text.size();
  if (is_number && rounds >= 1 && rounds <= limits::kept_rounds_max) return rounds;
  return Error(Errc::invalid_input, fmt::format("it must be none, all or a number of rounds from "
                                                "1 to {}, not '{}'",
                                                limits::kept_rounds_max, text));
}

TrainSettings local_work(const RunSettings& settings, const Strategy& strategy, Round round,
                         std::span<const double> losses) {
  const WorkRound at{.strategy = strategy, .round = round, .losses = losses};
  TrainSettings work = run_setting_table().work(settings, at);
  work.round = round;
  return work;
}

}  // namespace fl::server
