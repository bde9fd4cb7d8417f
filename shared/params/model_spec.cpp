// SPDX-License-Identifier: Apache-2.0
#include "shared/params/model_spec.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_options.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl {

namespace {

using Family = ModelSpec::Family;
using Loss = ModelSpec::Loss;
using Task = ModelSpec::Task;

Error wrong(std::string_view model, std::string_view what) {
  return {Errc::invalid_input, fmt::format("model \"{}\": {}", model, what)};
}

/// The values of an example of this shape.
std::int64_t values_in(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// The short names, all for 28x28 grey images and 10 classes, as specs with sizes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> short_names = {
    {{"cnn", "cnn:1x28x28-10"},
     {"resnet8", "resnet8:1x28x28-10"},
     {"resnet20", "resnet20:1x28x28-10"},
     {"mlp", "mlp:784-200-200-10,scale=none"},  // McMahan 2017, section 3, "2NN".
     {"logistic", "logistic:784-10,scale=none"}}};

Error unknown_model(std::string_view model, std::string_view name) {
  std::vector<std::string_view> names{"lenet", "linear", "transformer", "synthetic"};
  for (const auto& [shorter, spec] : short_names) names.push_back(shorter);
  return {Errc::invalid_input, fmt::format("unknown model \"{}\"; the models are: {}{}", model,
                                           builtin_model_names(), did_you_mean(name, names))};
}

std::string_view spelled_out(std::string_view model) {
  const auto found =
      std::ranges::find(short_names, model, [](const auto& row) { return row.first; });
  return found == short_names.end() ? model : found->second;
}

/// Numbers from 1 to model_size_max with `mark` between them; none if a part is not such a number.
std::optional<std::vector<std::int64_t>> sizes_in(std::string_view text, char mark) {
  std::vector<std::int64_t> sizes;
  for (std::optional<std::string_view> rest = text; rest;) {
    const auto [head, tail] = cut(*rest, mark);
    const auto size = number_in<std::int64_t>(head);
    if (!size || *size < 1 || *size > model_size_max) return std::nullopt;
    sizes.push_back(*size);
    rest = tail;
  }
  return sizes;
}

/// The dense layers of "IN-H1-OUT".
Result<void> read_dense(ModelSpec& spec, std::string_view model, std::string_view sizes,
                        bool may_have_hidden) {
  const auto numbers = sizes_in(sizes, '-');
  if (!numbers || numbers->size() < 2 || (!may_have_hidden && numbers->size() > 2) ||
      numbers->size() > static_cast<std::size_t>(model_layers_max)) {
    return wrong(model, fmt::format("'{}' must be {}, whole numbers from 1 to {} such as {}", sizes,
                                    may_have_hidden ? "IN-H1-...-OUT" : "IN-OUT", model_size_max,
                                    may_have_hidden ? "30-64-2" : "30-2"));
  }
  spec.family = Family::mlp;
  spec.input = {numbers->front()};
  spec.outputs = numbers->back();
  spec.hidden.assign(numbers->begin() + 1, numbers->end() - 1);
  return {};
}

/// The images and classes of "CxHxW-OUT".
Result<void> read_images(ModelSpec& spec, std::string_view model, std::string_view sizes) {
  const auto [shape, outputs] = cut(sizes, '-');
  const auto image = sizes_in(shape, 'x');
  const auto classes = outputs ? sizes_in(*outputs, '-') : std::nullopt;
  if (!image || image->size() != 3 || !classes || classes->size() != 1) {
    return wrong(model,
                 fmt::format("'{}' must be CHANNELSxHEIGHTxWIDTH-OUT, such as 3x32x32-10", sizes));
  }
  spec.input = *image;
  spec.outputs = classes->front();
  return {};
}

Result<void> read_resnet(ModelSpec& spec, std::string_view model, std::string_view layers,
                         std::string_view sizes) {
  const auto number = number_in<std::int64_t>(layers);
  if (!number || *number < 8 || *number > model_layers_max || (*number - 2) % 6 != 0) {
    return wrong(model, fmt::format("resnet{}: the number of layers must be 6n + 2: 8, 14, 20, 32, "
                                    "44, 56, 110 ...",
                                    layers));
  }
  spec.family = Family::resnet;
  spec.blocks = (*number - 2) / 6;
  return read_images(spec, model, sizes);
}

/// Errors: invalid_input for a capacity; the options have the others.
Result<ModelSpec::Experts> read_experts(SpecOptions& options, std::string_view model) {
  ModelSpec::Experts experts;
  experts.count = options.count("experts", 0, 1);
  if (experts.count == 0) return experts;
  experts.top = options.count("top", 2, 1);
  experts.aux = options.number("aux", 0.01, 0, 1000);
  experts.z = options.number("z", 0.001, 0, 1000);
  const std::string capacity = options.text("capacity");
  if (experts.count > model_experts_max || experts.top > experts.count) {
    return wrong(model, fmt::format("experts must be at most {}, and top at most experts",
                                    model_experts_max));
  }
  // What is adaptive takes the most that any expert gets (Hwang et al., "Tutel", MLSys 2023,
  // section 3.3); shapes need not be equal here, so that is none.
  if (capacity.empty() || capacity == "none" || capacity == "adaptive") return experts;
  const auto number = number_in<double>(capacity);
  if (!number || !(*number > 0 && *number <= model_experts_max))
    return wrong(model,
                 fmt::format("capacity={} must be none, adaptive, or a number above 0 such as 1.25",
                             capacity));
  experts.capacity = *number;
  return experts;
}

Result<ModelSpec> read_transformer(std::string_view model) {
  FL_TRY(auto options, SpecOptions::parse(model));
  ModelSpec spec{.family = Family::transformer, .task = Task::language, .input = {}};
  spec.layers = options.count("layers", 4, 1);
  spec.width = options.count("width", 256, 1);
  spec.heads = options.count("heads", 4, 1);
  spec.input = {options.count("context", 256, 2)};
  spec.outputs = options.count("vocab", 256, 2);
  FL_TRY(spec.experts, read_experts(options, model));
  FL_CHECK(options.finish());
  if (spec.outputs > model_size_max)
    return wrong(model, fmt::format("vocab {} is more than {}", spec.outputs, model_size_max));
  if (spec.layers > model_layers_max || spec.width > model_size_max ||
      spec.width % spec.heads != 0) {
    return wrong(model, fmt::format("width must be a multiple of heads and at most {}, and layers "
                                    "at most {}",
                                    model_size_max, model_layers_max));
  }
  if (spec.input[0] > transformer_context_max) {
    return wrong(model,
                 fmt::format("context {} is more than {}", spec.input[0], transformer_context_max));
  }
  return spec;
}

Result<ModelSpec> read_synthetic(std::string_view model, std::string_view elements) {
  const auto number = number_in<std::int64_t>(elements);
  if (!number || *number < 1 || static_cast<std::uint64_t>(*number) > limits::parameters_max)
    return wrong(model, fmt::format("N must be a number from 1 to {}", limits::parameters_max));
  return ModelSpec{.input = {*number}};
}

/// Task and loss, from what the family allows and from the options.
Result<void> read_task(ModelSpec& spec, std::string_view model, std::string_view name,
                       std::string_view options_text) {
  const std::string text =
      fmt::format("{}{}{}", name, options_text.empty() ? "" : ":", options_text);
  FL_TRY(auto options, SpecOptions::parse(text));
  const bool is_free = name != "linear" && name != "logistic";
  std::string_view loss =
      name == "linear" || (is_free && spec.outputs == 1) ? "mse" : "cross-entropy";
  if (name == "linear") {
    loss = options.word("loss", {"mse", "mae"});
  } else if (is_free && spec.outputs == 1) {
    loss = options.word("loss", {"mse", "mae", "cross-entropy"});
  } else if (is_free) {
    loss = options.word("loss", {"cross-entropy", "mse", "mae"});
  }
  const bool is_scaled = options.word("scale", {"all", "none"}) == "all";
  FL_CHECK(options.finish());
  spec.loss = loss == "mse" ? Loss::mse : loss == "mae" ? Loss::mae : Loss::cross_entropy;
  spec.task = spec.loss == Loss::cross_entropy ? Task::classification : Task::regression;
  if (spec.task == Task::classification && spec.outputs < 2)
    return wrong(model, "a classification has at least 2 classes, and OUT is 1");
  spec.scales_inputs = is_scaled && spec.family == Family::mlp;
  spec.scales_targets = is_scaled && spec.task == Task::regression;
  if (spec.scaled_inputs() + spec.scaled_targets() > scaled_values_max) {
    return wrong(model,
                 fmt::format("it would have to know mean and variance of {} values, and the "
                             "limit is {}: add ,scale=none",
                             spec.scaled_inputs() + spec.scaled_targets(), scaled_values_max));
  }
  return {};
}

}  // namespace

std::uint64_t ModelSpec::scaled_inputs() const {
  return scales_inputs ? static_cast<std::uint64_t>(values_in(input)) : 0;
}

std::uint64_t ModelSpec::scaled_targets() const {
  return scales_targets ? static_cast<std::uint64_t>(outputs) : 0;
}

Result<ModelSpec> parse_model(std::string_view model) {
  if (model.size() > limits::run_model_bytes_max) {
    return wrong(model.substr(0, 64), fmt::format("its {} bytes are more than {}", model.size(),
                                                  limits::run_model_bytes_max));
  }
  if (model == "lenet") {
    return ModelSpec{
        .family = Family::lenet, .task = Task::classification, .input = {1, 28, 28}, .outputs = 10};
  }
  const auto [name, after_name] = cut(spelled_out(model), ':');
  if (name == "transformer") return read_transformer(model);
  if (name == "synthetic" && after_name) return read_synthetic(model, *after_name);
  const auto [sizes, options] = cut(after_name.value_or(""), ',');
  ModelSpec spec;
  constexpr std::string_view resnet = "resnet";
  if (!after_name) return unknown_model(model, name);
  if (name == "linear" || name == "logistic" || name == "mlp") {
    FL_CHECK(read_dense(spec, model, sizes, name == "mlp"));
  } else if (name == "cnn") {
    spec.family = Family::cnn;
    FL_CHECK(read_images(spec, model, sizes));
    if (spec.input[1] < 4 || spec.input[2] < 4)
      return wrong(model, "images must have at least 4x4 pixels");
  } else if (name.starts_with(resnet) && name.size() > resnet.size()) {
    FL_CHECK(read_resnet(spec, model, name.substr(resnet.size()), sizes));
  } else {
    return unknown_model(model, name);
  }
  if (options && options->empty()) return wrong(model, "no KEY=VALUE follows its comma");
  FL_CHECK(read_task(spec, model, name, options.value_or("")));
  return spec;
}

std::string_view example_data(const ModelSpec& spec) {
  switch (spec.task) {
    case Task::none: return "";
    case Task::language: return spec.outputs == 256 ? "text:FOLDER" : "tokens:FILE";
    case Task::classification:
    case Task::regression: break;
  }
  if (values_in(spec.input) == 28 * 28 && spec.outputs == 10) return "fashion-mnist";
  const bool are_images = spec.input.size() == 3;
  if (are_images && spec.task == Task::classification) return "images:FOLDER";
  return are_images ? "npz:FILE" : "csv:FILE,target=COLUMN";
}

}  // namespace fl
