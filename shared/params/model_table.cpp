// SPDX-License-Identifier: Apache-2.0
#include "shared/params/model_table.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/params/model_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <utility>

namespace fl {

namespace {

struct Tensor {
  TensorSpec spec;
  double bound = 0;  // Initial values are uniform in [-bound, bound). 0: all are `constant`.
  float constant = 0;
};

/// A model's tensors, which its parts append.
struct Model {
  std::vector<Tensor> parameters;
  std::vector<Tensor> statistics;

  /// `shape` has the outputs first, as in PyTorch.
  Model& weight(std::string_view layer, std::vector<std::int64_t> shape) {
    double fan_in = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) fan_in *= static_cast<double>(shape[i]);
    parameters.push_back(
        {{fmt::format("{}.weight", layer), std::move(shape)}, 1 / std::sqrt(fan_in)});
    return *this;
  }
  /// A weight and a bias with the same bound.
  Model& layer(std::string_view name, std::vector<std::int64_t> shape) {
    const std::int64_t outputs = shape.front();
    weight(name, std::move(shape));
    parameters.push_back({{fmt::format("{}.bias", name), {outputs}}, parameters.back().bound});
    return *this;
  }
  /// One after the other, as many layers as there are experts. `shape`: outputs and inputs of one.
  Model& experts(std::string_view name, std::int64_t count,
                 const std::vector<std::int64_t>& shape) {
    layer(name, shape);
    for (Tensor* const tensor : {&parameters.end()[-2], &parameters.end()[-1]})
      tensor->spec.shape.insert(tensor->spec.shape.begin(), count);
    return *this;
  }
  Model& embedding(std::string_view name, std::int64_t rows, std::int64_t width) {
    constexpr double deviation = 0.02;  // As in GPT-2.
    parameters.push_back(
        {{fmt::format("{}.weight", name), {rows, width}}, deviation * std::numbers::sqrt3});
    return *this;
  }
  /// The weight and bias of a LayerNorm or BatchNorm.
  Model& norm(std::string_view name, std::int64_t width) {
    parameters.push_back({{fmt::format("{}.weight", name), {width}}, 0, 1});
    parameters.push_back({{fmt::format("{}.bias", name), {width}}, 0, 0});
    return *this;
  }
  Model& mean_and_variance(std::string_view name, std::int64_t values) {
    statistics.push_back({{fmt::format("{}.running_mean", name), {values}}, 0, 0});
    statistics.push_back({{fmt::format("{}.running_var", name), {values}}, 0, 1});
    return *this;
  }
  Model& batch_norm(std::string_view name, std::int64_t channels) {
    return norm(name, channels).mean_and_variance(name, channels);
  }
};

// Dense layers fc1, fc2, ...; a single one is fc.
void add_dense(Model& model, const ModelSpec& spec) {
  if (spec.hidden.empty()) {
    model.layer("fc", {spec.outputs, spec.input[0]});
    return;
  }
  std::int64_t before = spec.input[0];
  std::size_t number = 0;
  for (const std::int64_t width : spec.hidden)
    model.layer(fmt::format("fc{}", ++number), {width, std::exchange(before, width)});
  model.layer(fmt::format("fc{}", ++number), {spec.outputs, before});
}

// NIID-Bench, Li 2022, SimpleCNN on 28x28x1: no padding, max-pooling by 2 after each conv.
void add_lenet(Model& model) {
  model.layer("conv1", {6, 1, 5, 5})
      .layer("conv2", {16, 6, 5, 5})
      .layer("fc1", {120, 256})
      .layer("fc2", {84, 120})
      .layer("fc3", {10, 84});
}

// McMahan 2017, section 3: padding 2 keeps the size, pooling halves it twice.
void add_cnn(Model& model, const ModelSpec& spec) {
  model.layer("conv1", {32, spec.input[0], 5, 5})
      .layer("conv2", {64, 32, 5, 5})
      .layer("fc1", {512, 64 * (spec.input[1] / 2 / 2) * (spec.input[2] / 2 / 2)})
      .layer("fc2", {spec.outputs, 512});
}

// He 2016, section 4.2: three times `blocks` blocks of 16, 32 and 64 channels, with shortcuts that
// have no parameters (option A).
void add_resnet(Model& model, const ModelSpec& spec) {
  model.weight("conv1", {16, spec.input[0], 3, 3}).batch_norm("bn1", 16);
  std::int64_t channels = 16;
  for (std::int64_t b = 0; b < 3 * spec.blocks; ++b) {
    const auto name = [b](std::string_view part) { return fmt::format("block{}.{}", b + 1, part); };
    const std::int64_t before = channels;
    channels = std::int64_t{16} << (b / spec.blocks);
    model.weight(name("conv1"), {channels, before, 3, 3}).batch_norm(name("bn1"), channels);
    model.weight(name("conv2"), {channels, channels, 3, 3}).batch_norm(name("bn2"), channels);
  }
  model.layer("fc", {spec.outputs, channels});
}

// Radford 2019 (GPT-2), section 2.3: the norm comes before each part, and the embedding of tokens
// also gives the logits.
void add_transformer(Model& model, const ModelSpec& spec) {
  const std::int64_t width = spec.width;
  model.embedding("tokens", spec.outputs, width).embedding("positions", spec.input[0], width);
  for (std::int64_t b = 0; b < spec.layers; ++b) {
    const auto name = [b](std::string_view part) { return fmt::format("block{}.{}", b + 1, part); };
    model.norm(name("norm1"), width)
        .layer(name("attention"), {3 * width, width})
        .layer(name("projection"), {width, width})
        .norm(name("norm2"), width);
    if (spec.experts.count > 0) {
      model.weight(name("experts.router"), {spec.experts.count, width})
          .experts(name("experts.fc1"), spec.experts.count, {4 * width, width})
          .experts(name("experts.fc2"), spec.experts.count, {width, 4 * width});
    } else {
      model.layer(name("fc1"), {4 * width, width}).layer(name("fc2"), {width, 4 * width});
    }
  }
  model.norm("norm", width);
  if (spec.experts.count == 0) return;
  // As in GPT-2. The biases of PyTorch's default are larger than the embeddings, so all tokens
  // would look alike to a router and go to the same experts.
  for (Tensor& tensor : model.parameters)
    if (tensor.spec.name.ends_with(".bias")) tensor.bound = 0;
}

/// The model's tensors in the layout's order.
std::vector<Tensor> tensors_of(const ModelSpec& spec) {
  Model model;
  switch (spec.family) {
    case ModelSpec::Family::synthetic:
      model.parameters.push_back({{"weight", {spec.input[0]}}, 0, 0});
      break;
    case ModelSpec::Family::mlp: add_dense(model, spec); break;
    case ModelSpec::Family::lenet: add_lenet(model); break;
    case ModelSpec::Family::cnn: add_cnn(model, spec); break;
    case ModelSpec::Family::resnet: add_resnet(model, spec); break;
    case ModelSpec::Family::transformer: add_transformer(model, spec); break;
  }
  if (spec.scales_inputs) model.mean_and_variance("input", spec.input[0]);
  if (spec.scales_targets) model.mean_and_variance("target", spec.outputs);
  std::vector<Tensor> tensors = std::move(model.parameters);
  tensors.insert(tensors.end(), std::move_iterator(model.statistics.begin()),
                 std::move_iterator(model.statistics.end()));
  return tensors;
}

constexpr std::array<ModelRow, 12> rows = {{
    {"lenet", "two 5x5 convolutions, three dense layers; 44,426 parameters"},
    {"cnn", "the CNN of the FedAvg paper; 1,663,370 parameters"},
    {"resnet8", "ResNet of 8 layers with BatchNorm; 75,002 parameters"},
    {"resnet20", "ResNet of 20 layers with BatchNorm; 269,434 parameters"},
    {"mlp", "two hidden layers of 200; 199,210 parameters"},
    {"logistic", "logistic regression; 7,850 parameters"},
    {"linear:IN-OUT", "linear regression"},
    {"logistic:IN-OUT", "logistic regression"},
    {"mlp:IN-H1-...-OUT", "dense layers"},
    {"cnn:CxHxW-OUT, resnetN:CxHxW-OUT", "the same networks for other images"},
    {"transformer:layers=4,width=256,heads=4,context=256,vocab=256",
     "GPT-like, predicts the next byte or token"},
    {"synthetic:N", "one tensor of N zeros; updates are random noise, for tests"},
}};

constexpr std::uint64_t initial_piece_elements = 1 << 20;

/// The initial values of a tensor's elements from `first` on. `number`: the tensor's in its model.
void make_initial(const Tensor& tensor, std::uint64_t seed, std::uint64_t number,
                  std::uint64_t first, std::span<float> out) {
  if (tensor.bound == 0) {
    std::ranges::fill(out, tensor.constant);
    return;
  }
  const auto bound = static_cast<float>(tensor.bound);
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const philox::Block block = philox::block_at(seed, number, philox::counter_of(first + i));
    // 24 random bits, so that the conversion to float is exact: -1 to 1 - 2^-23 in equal steps.
    const auto bits = block.word[philox::word_of(first + i)] >> 8;
    out[i] = static_cast<float>(static_cast<std::int32_t>(bits) - (1 << 23)) * 0x1p-23f * bound;
  }
}

}  // namespace

Result<Layout> builtin_layout(std::string_view model) {
  FL_TRY(const ModelSpec spec, parse_model(model));
  std::vector<TensorSpec> specs;
  for (Tensor& tensor : tensors_of(spec)) specs.push_back(std::move(tensor.spec));
  auto layout = Layout::make(specs);
  if (!layout) return layout.error().at(fmt::format("model \"{}\"", model));
  return layout;
}

Result<std::vector<float>> builtin_initial_weights(std::string_view model, std::uint64_t seed) {
  FL_TRY(const Layout layout, builtin_layout(model));
  std::vector<float> weights(layout.elements());
  FL_CHECK(make_builtin_initial_weights(
      model, seed, [&](std::uint64_t first, std::span<const float> values) -> Result<void> {
        std::ranges::copy(values, weights.begin() + static_cast<std::ptrdiff_t>(first));
        return {};
      }));
  return weights;
}

Result<void> make_builtin_initial_weights(std::string_view model, std::uint64_t seed,
                                          const WriteValues& take) {
  FL_TRY(const Layout layout, builtin_layout(model));
  FL_TRY(const ModelSpec spec, parse_model(model));
  const std::vector<Tensor> made = tensors_of(spec);
  std::vector<float> room;
  for (std::size_t t = 0; t < made.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    for (std::uint64_t first = 0; first < tensor.elements; first += room.size()) {
      room.resize(static_cast<std::size_t>(
          std::min<std::uint64_t>(initial_piece_elements, tensor.elements - first)));
      make_initial(made[t], seed, t, first, room);
      FL_CHECK(take(tensor.offset + first, room));
    }
  }
  return {};
}

std::uint64_t builtin_summaries(std::string_view model) {
  const auto spec = parse_model(model);
  return spec ? spec->scaled_inputs() + spec->scaled_targets() : 0;
}

namespace {

/// The variance that a model stores beside the mean, both as fp32.
float stored_variance(const ColumnSummary& one) {
  using Limits = std::numeric_limits<float>;
  double variance = one.count > 0 ? one.squares / one.count : 0;
  if (!(variance > 0)) return 1;
  // Values that lie close together far from 0 would all be large after the rounded mean is taken
  // off. The mean square of what is left then serves as their variance.
  const double rest = one.mean - static_cast<double>(static_cast<float>(one.mean));
  if (16 * rest * rest > variance) variance += rest * rest;
  return static_cast<float>(std::clamp<double>(variance, Limits::min(), Limits::max()));
}

}  // namespace

void write_scaling(std::string_view model, std::span<const ColumnSummary> summaries,
                   std::span<float> weights) {
  const ModelSpec spec = parse_model(model).value();
  FL_ASSERT(summaries.size() == spec.scaled_inputs() + spec.scaled_targets());
  // The scaling comes last: means, then variances, of the inputs and then of the targets.
  auto out = weights.last(2 * summaries.size());
  for (const std::uint64_t values : {spec.scaled_inputs(), spec.scaled_targets()}) {
    for (std::size_t i = 0; i < values; ++i) {
      const ColumnSummary& one = summaries[i];
      out[i] = static_cast<float>(one.mean);
      out[values + i] = stored_variance(one);
    }
    out = out.subspan(2 * values);
    summaries = summaries.subspan(values);
  }
}

std::span<const MetricKind> builtin_metrics(std::string_view model) {
  static const std::array classes{known_metric("accuracy")};
  static const std::array two_classes{known_metric("accuracy"), known_metric("auroc")};
  static const std::array values{known_metric("mae"), known_metric("r2")};
  static const std::array text{known_metric("perplexity"), known_metric("expert_load"),
                               known_metric("dropped_tokens")};
  const auto spec = parse_model(model);
  if (!spec || spec->task == ModelSpec::Task::none) return {};
  if (spec->task == ModelSpec::Task::regression) return values;
  if (spec->task == ModelSpec::Task::language) {
    const ModelSpec::Experts& experts = spec->experts;
    return std::span(text).first(experts.count == 0 ? 1 : experts.capacity == 0 ? 2 : 3);
  }
  if (spec->outputs == 2) return two_classes;
  return classes;
}

std::span<const ModelRow> builtin_models() { return rows; }

std::string builtin_model_names() {
  std::string names;
  for (const ModelRow& row : builtin_models())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

}  // namespace fl
