// SPDX-License-Identifier: Apache-2.0
#include "shared/params/model_table.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace fl {

namespace {

struct Tensor {
  TensorSpec spec;
  std::int64_t fan_in = 0;  // Number of inputs of an output value; 0: all values are `constant`.
  float constant = 0;
};

struct Model {
  ModelRow row;
  std::vector<Tensor> parameters;
  std::vector<Tensor> statistics;

  /// `shape` has the outputs first, as in PyTorch.
  Model& weight(std::string_view layer, std::vector<std::int64_t> shape) {
    std::int64_t fan_in = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) fan_in *= shape[i];
    parameters.push_back({{fmt::format("{}.weight", layer), std::move(shape)}, fan_in});
    return *this;
  }
  /// A weight and a bias with the same fan-in.
  Model& layer(std::string_view name, std::vector<std::int64_t> shape) {
    const std::int64_t outputs = shape.front();
    weight(name, std::move(shape));
    parameters.push_back({{fmt::format("{}.bias", name), {outputs}}, parameters.back().fan_in});
    return *this;
  }
  Model& batch_norm(std::string_view name, std::int64_t channels) {
    const auto named = [&](std::string_view tensor, float constant) {
      return Tensor{{fmt::format("{}.{}", name, tensor), {channels}}, 0, constant};
    };
    parameters.push_back(named("weight", 1));
    parameters.push_back(named("bias", 0));
    statistics.push_back(named("running_mean", 0));
    statistics.push_back(named("running_var", 1));
    return *this;
  }
};

// He 2016, section 4.2, for 28 x 28 x 1: three times `blocks` blocks of 16, 32 and 64 channels,
// with shortcuts that have no parameters (option A).
Model resnet(ModelRow row, std::int64_t blocks) {
  Model model{row, {}, {}};
  model.weight("conv1", {16, 1, 3, 3}).batch_norm("bn1", 16);
  std::int64_t channels = 16;
  for (std::int64_t b = 0; b < 3 * blocks; ++b) {
    const auto name = [b](std::string_view part) { return fmt::format("block{}.{}", b + 1, part); };
    const std::int64_t before = channels;
    channels = std::int64_t{16} << (b / blocks);
    model.weight(name("conv1"), {channels, before, 3, 3}).batch_norm(name("bn1"), channels);
    model.weight(name("conv2"), {channels, channels, 3, 3}).batch_norm(name("bn2"), channels);
  }
  return model.layer("fc", {10, channels});
}

const std::vector<Model>& models() {
  static const std::vector<Model> table = {
      // NIID-Bench, Li 2022, SimpleCNN on 28x28x1: no padding, max-pooling by 2 after each conv.
      Model{{"lenet", "two 5x5 convolutions, three dense layers; 44,426 parameters"}, {}, {}}
          .layer("conv1", {6, 1, 5, 5})
          .layer("conv2", {16, 6, 5, 5})
          .layer("fc1", {120, 256})
          .layer("fc2", {84, 120})
          .layer("fc3", {10, 84}),
      // McMahan 2017, section 3: padding 2 keeps 28x28, pooling leaves 7x7x64.
      Model{{"cnn", "the CNN of the FedAvg paper; 1,663,370 parameters"}, {}, {}}
          .layer("conv1", {32, 1, 5, 5})
          .layer("conv2", {64, 32, 5, 5})
          .layer("fc1", {512, 3136})
          .layer("fc2", {10, 512}),
      resnet({"resnet8", "ResNet of 8 layers with BatchNorm; 75,002 parameters"}, 1),
      resnet({"resnet20", "ResNet of 20 layers with BatchNorm; 269,434 parameters"}, 3),
      // McMahan 2017, section 3, "2NN".
      Model{{"mlp", "two hidden layers of 200; 199,210 parameters"}, {}, {}}
          .layer("fc1", {200, 784})
          .layer("fc2", {200, 200})
          .layer("fc3", {10, 200}),
      Model{{"logistic", "logistic regression; 7,850 parameters"}, {}, {}}.layer("fc", {10, 784}),
  };
  return table;
}

/// In the layout's order.
std::vector<Tensor> tensors_of(const Model& model) {
  std::vector<Tensor> tensors = model.parameters;
  tensors.insert(tensors.end(), model.statistics.begin(), model.statistics.end());
  return tensors;
}

constexpr std::string_view synthetic_prefix = "synthetic:";
constexpr ModelRow synthetic_row = {"synthetic:N",
                                    "one tensor of N zeros; updates are random noise, for tests"};

const Model* find_model(std::string_view name) {
  const auto found = std::ranges::find(models(), name, [](const Model& m) { return m.row.name; });
  return found == models().end() ? nullptr : &*found;
}

Result<Layout> synthetic_layout(std::string_view model) {
  const std::string_view digits = model.substr(synthetic_prefix.size());
  std::int64_t elements = 0;
  const auto [end, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), elements);
  if (failed != std::errc{} || end != digits.data() + digits.size() || elements < 1 ||
      static_cast<std::uint64_t>(elements) > limits::parameters_max) {
    return Error(Errc::invalid_input, fmt::format("model \"{}\": N must be a number from 1 to {}",
                                                  model, limits::parameters_max));
  }
  return Layout::make({{"weight", {elements}}});
}

}  // namespace

Result<Layout> builtin_layout(std::string_view model) {
  if (model.starts_with(synthetic_prefix)) return synthetic_layout(model);
  const Model* found = find_model(model);
  if (found == nullptr) {
    return Error(Errc::invalid_input, fmt::format("unknown model \"{}\"; the models are: {}", model,
                                                  builtin_model_names()));
  }
  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : tensors_of(*found)) specs.push_back(tensor.spec);
  return Layout::make(specs);
}

Result<std::vector<float>> builtin_initial_weights(std::string_view model, std::uint64_t seed) {
  FL_TRY(const Layout layout, builtin_layout(model));
  std::vector<float> weights(layout.elements());
  const Model* found = find_model(model);
  if (found == nullptr) return weights;  // Synthetic: zeros.
  const std::vector<Tensor> made = tensors_of(*found);
  for (std::size_t t = 0; t < made.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto values = std::span(weights).subspan(tensor.offset, tensor.elements);
    if (made[t].fan_in == 0) {
      std::ranges::fill(values, made[t].constant);
      continue;
    }
    const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(made[t].fan_in)));
    for (std::uint64_t i = 0; i < values.size(); ++i) {
      const philox::Block block = philox::block_at(seed, t, philox::counter_of(i));
      // 24 random bits, so that the conversion to float is exact: -1 to 1 - 2^-23 in equal steps.
      const auto step = static_cast<std::int32_t>(block.word[philox::word_of(i)] >> 8) - (1 << 23);
      values[i] = static_cast<float>(step) * 0x1p-23f * bound;
    }
  }
  return weights;
}

std::span<const MetricKind> builtin_metrics(std::string_view model) {
  static const std::array measured{known_metric("accuracy")};
  if (model.starts_with("synthetic:")) return {};
  return measured;
}

std::span<const ModelRow> builtin_models() {
  static const std::vector<ModelRow> rows = [] {
    std::vector<ModelRow> all;
    for (const Model& model : models()) all.push_back(model.row);
    all.push_back(synthetic_row);
    return all;
  }();
  return rows;
}

std::string builtin_model_names() {
  std::string names;
  for (const ModelRow& row : builtin_models())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

}  // namespace fl
