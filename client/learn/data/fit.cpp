// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/fit.hpp"

#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace fl {

namespace {

using Task = ModelSpec::Task;

Error unfit(std::string_view model, const DataSet& set, std::string_view wanted,
            std::string_view found) {
  return {Errc::invalid_input, fmt::format("model \"{}\" takes {}, but \"{}\" has {}", model,
                                           wanted, set.source, found)};
}

Result<void> check_text(const ModelSpec& spec, std::string_view model, const DataSet& set) {
  if (set.vocabulary > spec.outputs) {
    return unfit(model, set, fmt::format("tokens from 0 to {}", spec.outputs - 1),
                 set.token_bytes == 1 ? "bytes, which are tokens from 0 to 255"
                                      : fmt::format("tokens to {}", set.vocabulary - 1));
  }
  const std::int64_t predicted = set.shape[0] - 1;
  if (spec.input[0] <= predicted) return {};
  return unfit(model, set, fmt::format("contexts of {} tokens", spec.input[0]),
               fmt::format("pieces of {}: add piece={} to it", predicted, spec.input[0]));
}

Result<void> check_inputs(const ModelSpec& spec, std::string_view model, const DataSet& set) {
  const bool is_text = set.kind == DataSet::Kind::text;
  if (spec.task == Task::language)
    return is_text ? check_text(spec, model, set) : unfit(model, set, "text", "no text");
  if (is_text) return unfit(model, set, "images or numbers", "text");
  if (spec.family == ModelSpec::Family::mlp) {
    const auto values = static_cast<std::int64_t>(set.row_elements());
    if (values == spec.input[0]) return {};
    return unfit(model, set, fmt::format("{} values an example", spec.input[0]),
                 fmt::format("{}", values));
  }
  if (set.shape == spec.input) return {};
  return unfit(model, set, fmt::format("images of {}", shape_text(spec.input)),
               fmt::format("examples of {}", shape_text(set.shape)));
}

Result<void> check_targets(const ModelSpec& spec, std::string_view model, const DataSet& set) {
  if (spec.task == Task::classification) {
    if (set.labels.empty()) {
      return unfit(
          model, set, fmt::format("labels from 0 to {}", spec.outputs - 1),
          set.targets.empty() ? "none"
          : set.outputs > 1
              ? fmt::format("{} targets an example; of one-hot rows give the number of the "
                            "class, as NumPy's argmax(1) does",
                            set.outputs)
              : "targets that are not integers from 0");
    }
    if (set.classes <= spec.outputs) return {};
    return unfit(model, set, fmt::format("labels from 0 to {}", spec.outputs - 1),
                 fmt::format("labels to {}", set.classes - 1));
  }
  if (spec.task != Task::regression) return {};
  const std::int64_t found = set.targets.empty() ? (set.labels.empty() ? 0 : 1) : set.outputs;
  if (found == spec.outputs) return {};
  return unfit(model, set, fmt::format("{} targets an example", spec.outputs),
               fmt::format("{}", found));
}

/// A model that scales its inputs puts the mean in place of a missing value; others can't.
Result<void> check_missing(const ModelSpec& spec, std::string_view model, const LocalData& data) {
  const DataSet& set = *data.all;
  if (set.kind != DataSet::Kind::values || spec.scales_inputs) return {};
  const std::uint64_t columns = set.row_elements();
  const auto values = set.inputs.as<float>();
  for (const auto* part : {&data.train, &data.holdout}) {
    for (const std::uint32_t example : *part) {
      const auto row = values.subspan(example * columns, columns);
      const auto missing = std::ranges::find_if(row, [](float x) { return std::isnan(x); });
      if (missing == row.end()) continue;
      return unfit(model, set, "no missing values, because it does not scale its inputs",
                   fmt::format("one in example {}, value {}", example, missing - row.begin()));
    }
  }
  return {};
}

void add_value(ColumnSummary& summary, double value) {  // Welford's step.
  if (std::isnan(value)) return;
  summary.count += 1;
  const double before = value - summary.mean;
  summary.mean += before / summary.count;
  summary.squares += before * (value - summary.mean);
}

void add_inputs(std::span<ColumnSummary> summaries, const DataSet& set, std::uint32_t example) {
  if (set.kind == DataSet::Kind::values) {
    const auto row = set.inputs.as<float>().subspan(example * summaries.size(), summaries.size());
    const auto& offsets = set.input_offsets;
    for (std::size_t i = 0; i < row.size(); ++i)
      add_value(summaries[i], offsets.empty() ? row[i] : offsets[i] + row[i]);
  } else {
    const auto row = set.row(example);
    for (std::size_t i = 0; i < row.size(); ++i)
      add_value(summaries[i], static_cast<float>(row[i]) / 255.0F);
  }
}

/// Names a value that the model scales, for an error: an input, or behind those a target.
std::string name_of(const DataSet& set, std::uint64_t value, std::uint64_t inputs) {
  const bool is_input = value < inputs;
  const auto& names = is_input ? set.input_names : set.target_names;
  const std::uint64_t number = is_input ? value : value - inputs;
  if (number < names.size()) return fmt::format("column \"{}\"", printable(names[number], 64));
  return fmt::format("{} {} of each example", is_input ? "value" : "target", number + 1);
}

Result<void> check_scale(const std::string& name, const ColumnSummary& one) {
  using Limits = std::numeric_limits<float>;
  constexpr double mean_error = 0x1p-25;  // The largest rounding of a mean to fp32, by the mean.
  if (one.squares == 0) return {};
  const double variance = one.squares / one.count;
  const double deviation = std::sqrt(variance);
  const bool is_large = variance > static_cast<double>(Limits::max());
  if (is_large || variance < static_cast<double>(Limits::min())) {
    return Error(
        Errc::invalid_input,
        fmt::format("{}: its values deviate by {:.3g} from {:.3g}, and a model can scale "
                    "deviations from 1.1e-19 to 1.8e19: {} it by a number that all members share",
                    name, deviation, one.mean, is_large ? "divide" : "multiply"));
  }
  if (4 * std::abs(one.mean) * mean_error > deviation) {
    log_warn(
        "{}: its values deviate by only {:.3g} from {:.6g}, which slows training down: subtract "
        "a number that all members share",
        name, deviation, one.mean);
  }
  return {};
}

}  // namespace

Result<void> check_fit(const ModelSpec& spec, std::string_view model, const LocalData& data) {
  if (!data.all) return {};
  FL_CHECK(check_inputs(spec, model, *data.all));
  FL_CHECK(check_targets(spec, model, *data.all));
  return check_missing(spec, model, data);
}

Result<void> check_fit_to_predict(const ModelSpec& spec, std::string_view model,
                                  const LocalData& data) {
  const DataSet& set = *data.all;
  if (const auto fits = check_inputs(spec, model, set); !fits) {
    if (set.input_names.empty()) return fits;
    return Error(fits.error().code(), fits.error().message() +
                                          ": name the column to predict with target=, and columns "
                                          "that were no inputs in training with ignore=");
  }
  if (spec.task == Task::classification && set.classes > spec.outputs) {
    return unfit(model, set, fmt::format("{} classes", spec.outputs),
                 fmt::format("{}", set.classes));
  }
  return check_missing(spec, model, data);
}

Result<void> check_values(std::string_view model, const LocalData& data) {
  const auto spec = parse_model(model);
  if (!spec || !data.all) return {};
  FL_CHECK(check_fit(*spec, model, data));
  const DataSet& set = *data.all;
  const auto summaries = summarise(*spec, data);
  for (std::uint64_t i = 0; i < summaries.size(); ++i) {
    const std::string name = name_of(set, i, spec->scaled_inputs());
    FL_CHECK(check_scale(fmt::format("{}: {}", set.source, name), summaries[i]));
  }
  return {};
}

double target_of(const DataSet& set, std::uint32_t example, std::uint32_t output) {
  if (set.targets.empty()) return set.labels[example];
  const double kept = set.targets[std::size_t{example} * set.outputs + output];
  return set.target_offsets.empty() ? kept : set.target_offsets[output] + kept;
}

std::uint32_t windows_in(std::uint32_t piece_tokens, std::int64_t context) {
  const std::int64_t predicted = std::int64_t{piece_tokens} - 1;
  return static_cast<std::uint32_t>((predicted + context - 1) / context);
}

std::uint64_t examples_in(const ModelSpec& spec, const DataSet& set,
                          std::span<const std::uint32_t> chosen) {
  if (spec.task != Task::language) return chosen.size();
  std::uint64_t windows = 0;
  for (const std::uint32_t piece : chosen)
    windows += windows_in(set.pieces[piece].length, spec.input[0]);
  return windows;
}

std::vector<ColumnSummary> summarise(const ModelSpec& spec, const LocalData& data) {
  const std::uint64_t inputs = spec.scaled_inputs();
  std::vector<ColumnSummary> summaries(inputs + spec.scaled_targets());
  if (!data.all) return summaries;
  const auto of_inputs = std::span(summaries).first(inputs);
  const auto of_targets = std::span(summaries).subspan(inputs);
  for (const std::uint32_t example : data.train) {
    if (inputs > 0) add_inputs(of_inputs, *data.all, example);
    for (std::uint32_t i = 0; i < of_targets.size(); ++i)
      add_value(of_targets[i], target_of(*data.all, example, i));
  }
  return summaries;
}

}  // namespace fl
