// SPDX-License-Identifier: Apache-2.0
#include "client/learn/predictions.hpp"

#include "client/learn/data/fit.hpp"
#include "shared/base/printable.hpp"

#ifdef FL_HAS_TORCH
#include "client/learn/torch_library.hpp"
#endif

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace fl {

namespace {

using Task = ModelSpec::Task;

Result<void> check_task(const BuiltinModel& model) {
  if (model.spec.family != ModelSpec::Family::synthetic) return {};
  return Error(Errc::invalid_input,
               fmt::format("model \"{}\" predicts nothing of examples", model.model));
}

/// The standard deviation as the loss has it: above 0 even where rounding has made a variance 0.
double deviation_of(float variance) {
  return std::sqrt(static_cast<double>(std::max(variance, std::numeric_limits<float>::min())));
}

}  // namespace

Result<void> predict(const LearnOptions& options, const BuiltinModel& model, const LocalData& data,
                     const TakeOutputs& take) {
  FL_CHECK(check_task(model));
  FL_CHECK(check_fit_to_predict(model.spec, model.model, data));
#ifdef FL_HAS_TORCH
  return load_torch_predictor(options, model, data, take);
#else
  (void)options;
  (void)take;
  return Error(Errc::invalid_input,
               "the built-in models need libtorch, but this program was built without it "
               "(FL_TORCH=OFF)");
#endif
}

PredictionTable::PredictionTable(const BuiltinModel& model, const DataSet& set)
    : model_(model),
      set_(set),
      means_(model.tensor("target.running_mean")),
      variances_(model.tensor("target.running_var")) {}

std::string PredictionTable::class_name(std::size_t number) const {
  return number < set_.class_names.size() ? set_.class_names[number] : std::to_string(number);
}

std::string PredictionTable::value_name(std::size_t number) const {
  const auto outputs = static_cast<std::size_t>(model_.spec.outputs);
  if (set_.target_names.size() == outputs) return set_.target_names[number];
  return outputs == 1 ? "value" : fmt::format("value_{}", number + 1);
}

std::string PredictionTable::header() const {
  std::string line = set_.example_names.empty() ? "row" : csv_field(set_.example_heading);
  if (model_.spec.task == Task::language) return line + ",predictions,loss,perplexity\n";
  const bool has_classes = model_.spec.task == Task::classification;
  if (has_classes) line += ",class";
  for (std::size_t i = 0; i < static_cast<std::size_t>(model_.spec.outputs); ++i)
    line += "," + csv_field(has_classes ? "p_" + class_name(i) : value_name(i));
  return line + "\n";
}

std::string PredictionTable::lines_of(std::span<const float> outputs) {
  if (model_.spec.task == Task::language) return lines_of_texts(outputs);
  const auto each = static_cast<std::size_t>(model_.spec.outputs);
  FL_ASSERT(outputs.size() % each == 0);
  std::string lines;
  for (; !outputs.empty(); outputs = outputs.subspan(each)) {
    lines += next_name();
    if (model_.spec.task == Task::classification) {
      put_classes(lines, outputs.first(each));
    } else {
      put_values(lines, outputs.first(each));
    }
    lines += '\n';
  }
  return lines;
}

/// The first field of the next line.
std::string PredictionTable::next_name() {
  FL_ASSERT(rows_ < set_.size());
  const std::uint32_t row = rows_++;
  return set_.example_names.empty() ? std::to_string(row + 1) : csv_field(set_.example_names[row]);
}

std::string PredictionTable::lines_of_texts(std::span<const float> outputs) {
  FL_ASSERT(outputs.size() % text_outputs == 0);
  std::string lines;
  for (; !outputs.empty(); outputs = outputs.subspan(text_outputs)) {
    FL_ASSERT(rows_ < set_.size());
    loss_ += outputs[0];
    if (++windows_ < windows_in(set_.pieces[rows_].length, model_.spec.input[0])) continue;
    const std::uint32_t predictions = set_.pieces[rows_].length - 1;
    const double mean = std::exchange(loss_, 0) / predictions;
    windows_ = 0;
    const std::string name = next_name();
    fmt::format_to(std::back_inserter(lines), "{},{},{},{}\n", name, predictions,
                   static_cast<float>(mean), static_cast<float>(std::exp(mean)));
  }
  return lines;
}

void PredictionTable::put_classes(std::string& line, std::span<const float> logits) const {
  const auto largest = std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - *largest);
  line += "," + csv_field(class_name(static_cast<std::size_t>(largest - logits.begin())));
  for (const float logit : logits) {
    const double share = std::exp(static_cast<double>(logit) - *largest) / sum;
    fmt::format_to(std::back_inserter(line), ",{}", static_cast<float>(share));
  }
}

void PredictionTable::put_values(std::string& line, std::span<const float> values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (means_.empty()) {
      fmt::format_to(std::back_inserter(line), ",{}", values[i]);
      continue;
    }
    // Large values that differ by little, such as times since 1970, take more digits than fp32 has.
    const double value = values[i] * deviation_of(variances_[i]) + means_[i];
    fmt::format_to(std::back_inserter(line), ",{:.12g}", value);
  }
}

}  // namespace fl
