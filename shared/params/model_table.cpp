#include "shared/params/model_table.hpp"

#include "kernels/philox.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace fl {

namespace {

// A layer is a weight and a bias, with the same fan-in: the inputs of one output value.
struct Layer {
  std::string_view name;
  std::vector<std::int64_t> weight;  // Outputs first, as PyTorch has it.

  [[nodiscard]] std::int64_t fan_in() const {
    std::int64_t inputs = 1;
    for (std::size_t i = 1; i < weight.size(); ++i) inputs *= weight[i];
    return inputs;
  }
};

struct Model {
  ModelRow row;
  std::vector<Layer> layers;
};

const std::vector<Model>& models() {
  static const std::vector<Model> table = {
      // NIID-Bench, Li 2022, SimpleCNN on 28x28x1: no padding, max-pooling by 2 after each conv.
      {{"lenet", "two 5x5 convolutions, three dense layers; 44,426 parameters"},
       {{"conv1", {6, 1, 5, 5}},
        {"conv2", {16, 6, 5, 5}},
        {"fc1", {120, 256}},
        {"fc2", {84, 120}},
        {"fc3", {10, 84}}}},
      // McMahan 2017, section 3: padding 2 keeps 28x28, pooling leaves 7x7x64.
      {{"cnn", "the CNN of the FedAvg paper; 1,663,370 parameters"},
       {{"conv1", {32, 1, 5, 5}},
        {"conv2", {64, 32, 5, 5}},
        {"fc1", {512, 3136}},
        {"fc2", {10, 512}}}},
      // McMahan 2017, section 3, "2NN".
      {{"mlp", "two hidden layers of 200; 199,210 parameters"},
       {{"fc1", {200, 784}}, {"fc2", {200, 200}}, {"fc3", {10, 200}}}},
      {{"logistic", "logistic regression; 7,850 parameters"}, {{"fc", {10, 784}}}},
  };
  return table;
}

constexpr std::string_view synthetic_prefix = "synthetic:";
constexpr ModelRow synthetic_row = {"synthetic:N",
                                    "one tensor of N zeros, trained by arithmetic only, for tests"};

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
    std::string names;
    for (const ModelRow& row : builtin_models()) names += fmt::format(" {}", row.name);
    return Error(Errc::invalid_input,
                 fmt::format("there is no model \"{}\"; there are:{}", model, names));
  }
  std::vector<TensorSpec> specs;
  for (const Layer& layer : found->layers) {
    specs.push_back({fmt::format("{}.weight", layer.name), layer.weight});
    specs.push_back({fmt::format("{}.bias", layer.name), {layer.weight.front()}});
  }
  return Layout::make(specs);
}

Result<std::vector<float>> builtin_initial_weights(std::string_view model, std::uint64_t seed) {
  FL_TRY(const Layout layout, builtin_layout(model));
  std::vector<float> weights(layout.elements());
  const Model* found = find_model(model);
  if (found == nullptr) return weights;  // Synthetic: zeros.
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto fan_in = static_cast<double>(found->layers[t / 2].fan_in());
    const auto bound = static_cast<float>(1.0 / std::sqrt(fan_in));
    for (std::uint64_t i = 0; i < tensor.elements; ++i) {
      const philox::Block block = philox::block_at(seed, t, philox::counter_of(i));
      // 24 bits, so that the conversion is exact: -1 to 1 - 2^-23 in equal steps.
      const auto step = static_cast<std::int32_t>(block.word[philox::word_of(i)] >> 8) - (1 << 23);
      weights[tensor.offset + i] = static_cast<float>(step) * 0x1p-23f * bound;
    }
  }
  return weights;
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

}  // namespace fl
