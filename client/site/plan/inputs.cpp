// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace fl::site {

namespace {

/// Shows `value` with three digits and the largest of the units that keeps it at 1 or above.
std::string with_unit(double value, double step, double smallest, const auto& units) {
  std::size_t unit = 0;
  double scaled = value / smallest;
  while (scaled >= step * 0.9995 && unit + 1 < units.size()) {
    scaled /= step;
    ++unit;
  }
  const int decimals = scaled >= 99.95 || scaled == 0 ? 0 : scaled >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", scaled, decimals, units[unit]);
}

Error wrong(std::string text) { return {Errc::invalid_input, std::move(text)}; }

/// Parameters of a layer by hidden^2: 4 of attention, and 8 of dense layers or of each expert.
double layer_factor(const ModelShape& shape) {
  return 4.0 + 8.0 * real(std::max<std::int64_t>(1, shape.experts));
}

/// Whether a shape with these sizes has about so many parameters: within a factor of 4, as
/// feed-forward sizes, grouped heads and vocabularies differ.
bool is_plausible(const ModelShape& shape) {
  const double expected =
      layer_factor(shape) * real(shape.layers) * std::pow(real(shape.hidden), 2) +
      real(shape.vocabulary * shape.hidden);
  return shape.parameters > expected / 4 && shape.parameters < expected * 4;
}

/// How many parameters a token of a model with experts uses, where only the sizes are known.
double active_of(const ModelShape& shape) {
  const double hidden = real(shape.hidden);
  const double shared = 4 * real(shape.layers) * hidden * hidden + real(shape.vocabulary) * hidden;
  return shared + (shape.parameters - shared) * real(shape.top) / real(shape.experts);
}

}  // namespace

double ModelShape::of_experts() const {
  if (experts == 0 || top == experts) return 0;
  return (parameters - active) / (1 - real(top) / real(experts));
}

Result<double> parse_quantity(std::string_view text) {
  const Error error = wrong(fmt::format(
      "'{}' is not a number above 0 with a unit, for example 7e9, 80G, 2.5T or 16GiB", text));
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failed != std::errc{} || !std::isfinite(number) || number <= 0) return error;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.ends_with("/s")) unit.remove_suffix(2);
  if (unit.size() > 1 && unit.ends_with('B')) unit.remove_suffix(1);
  for (const auto& [name, factor] : {std::pair{"", 1.0},
                                     {"K", 1e3},
                                     {"M", 1e6},
                                     {"G", 1e9},
                                     {"B", 1e9},
                                     {"T", 1e12},
                                     {"P", 1e15},
                                     {"Ki", 0x1p10},
                                     {"Mi", 0x1p20},
                                     {"Gi", 0x1p30},
                                     {"Ti", 0x1p40}}) {
    if (unit == name) return number * factor;
  }
  return error;
}

Result<ModelShape> complete_shape(ModelShape shape) {
  shape.is_assumed = shape.layers == 0 || shape.hidden == 0 || shape.heads == 0;
  const double factor = layer_factor(shape);
  const auto rounded = [](double value, std::int64_t to) {
    return std::max<std::int64_t>(1, std::llround(value / static_cast<double>(to))) * to;
  };
  if (shape.layers == 0) {
    const double layers = shape.hidden > 0
                              ? shape.parameters / (factor * std::pow(real(shape.hidden), 2))
                              : std::cbrt(shape.parameters / (factor * 128 * 128));
    shape.layers = rounded(layers, layers >= 12 ? 8 : 1);
  }
  if (shape.hidden == 0) {
    const double hidden = std::sqrt(shape.parameters / (factor * real(shape.layers)));
    shape.hidden = rounded(hidden, hidden >= 1024 ? 1024 : 128);
  }
  if (shape.heads == 0) shape.heads = shape.hidden % 128 == 0 ? shape.hidden / 128 : 1;
  if (shape.hidden % shape.heads != 0)
    return wrong(fmt::format("--hidden {} can't be divided into {} heads: change --heads",
                             shape.hidden, shape.heads));
  if (!is_plausible(shape))
    return wrong(fmt::format(
        "--params {} does not fit {} layers of hidden size {}, which have about {} parameters: "
        "correct --params, --layers or --hidden",
        in_count(shape.parameters), shape.layers, shape.hidden,
        in_count(factor * real(shape.layers) * std::pow(real(shape.hidden), 2))));
  if (shape.experts == 0) {
    if (shape.active > 0) return wrong("--active-params is for a model with --experts");
    return shape;
  }
  if (shape.top > shape.experts)
    return wrong(fmt::format("--top {} is above --experts {}", shape.top, shape.experts));
  if (shape.active == 0) shape.active = active_of(shape);
  const double least = shape.parameters * real(shape.top) / real(shape.experts);
  if (shape.active > shape.parameters || shape.active < least)
    return wrong(fmt::format(
        "a token that uses {} of {} experts uses between {} and all of {} parameters, and not {}: "
        "correct --active-params, or --params and the sizes",
        shape.top, shape.experts, in_count(least), in_count(shape.parameters),
        in_count(shape.active)));
  return shape;
}

Result<void> check_inputs(const SiteMachines& machines, const PlanTraining& training) {
  if (machines.gpus > machines.gpus_per_node && machines.gpus % machines.gpus_per_node != 0)
    return wrong(
        fmt::format("--gpus {} is not a multiple of --gpus-per-node {}: nodes must have "
                    "the same number of GPUs",
                    machines.gpus, machines.gpus_per_node));
  if (machines.gpus > machines.gpus_per_node && machines.inter_bytes_s <= 0)
    return wrong(
        fmt::format("{} GPUs are on more than one node of {}: also give --inter, the "
                    "bytes/s between nodes",
                    machines.gpus, machines.gpus_per_node));
  if (machines.gpus > 1 && machines.intra_bytes_s <= 0)
    return wrong("more than one GPU: also give --intra, the bytes/s between two GPUs of a node");
  if (training.batch < 1) return wrong("--batch must be at least one sequence");
  return {};
}

std::string in_bytes(double bytes) {
  return with_unit(bytes, 1000, 1, std::array{" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string in_seconds(double seconds) {
  if (seconds < 0.9995) return with_unit(seconds, 1000, 1e-6, std::array{" us", " ms"});
  if (seconds < 599.5) return with_unit(seconds, 1000, 1, std::array{" s"});
  return with_unit(seconds, 60, 60, std::array{" min", " h"});
}

std::string in_count(double count) {
  return with_unit(count, 1000, 1,
                   std::array{"", " thousand", " million", " billion", " trillion"});
}

}  // namespace fl::site
