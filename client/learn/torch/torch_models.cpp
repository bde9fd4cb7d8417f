// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_models.hpp"

#include "client/learn/torch/divided_attention.hpp"
#include "client/learn/torch/divided_layers.hpp"
#include "client/learn/torch/experts.hpp"
#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/torch_task.hpp"
#include "shared/params/model_spec.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl {

namespace {

namespace nn = torch::nn;

Layer<nn::Conv2dImpl> conv(std::int64_t from, std::int64_t to, std::int64_t padding) {
  return make_layer<nn::Conv2dImpl>(nn::Conv2dOptions(from, to, 5).padding(padding));
}

Layer<nn::LinearImpl> linear(std::int64_t from, std::int64_t to) {
  return make_layer<nn::LinearImpl>(from, to);
}

Layer<nn::BatchNorm2dImpl> batch_norm(std::int64_t channels) {
  return make_layer<nn::BatchNorm2dImpl>(channels);
}

// Max-pooling comes before the ReLU: the two commute, and the ReLU then has a quarter of the work.
nn::Functional pool_relu() {
  return nn::Functional([](const torch::Tensor& x) { return torch::max_pool2d(x, 2).relu_(); });
}

nn::Functional relu() {
  return nn::Functional([](const torch::Tensor& x) { return torch::relu(x); });
}

// SimpleCNN of NIID-Bench, Li 2022, for 28 x 28 x 1.
nn::Sequential lenet() {
  return nn::Sequential({{"conv1", conv(1, 6, 0)},
                         {"pool1", pool_relu()},
                         {"conv2", conv(6, 16, 0)},
                         {"pool2", pool_relu()},
                         {"flatten", nn::Flatten()},
                         {"fc1", linear(256, 120)},
                         {"relu1", relu()},
                         {"fc2", linear(120, 84)},
                         {"relu2", relu()},
                         {"fc3", linear(84, 10)}});
}

// Mean and variance that a model knows of the values at its input or output, as its statistics. At
// the input they scale the values and put the mean in place of a missing one. Those of the output
// are used by the loss (TargetScale), and here they are only kept.
struct Scaling : nn::Module {
  Scaling(std::int64_t values, bool is_input)
      : is_input_(is_input),
        mean(register_buffer("running_mean", torch::zeros({values}))),
        variance(register_buffer("running_var", torch::ones({values}))) {}

  // fp64 inputs become fp32 here, when the mean is off.
  torch::Tensor forward(const torch::Tensor& x) {
    if (!is_input_) return x;
    const torch::Tensor scaled = (x - mean) / deviation_of(variance);
    return torch::nan_to_num(scaled.to(torch::kFloat32), 0.0);
  }

  bool is_input_;
  torch::Tensor mean;
  torch::Tensor variance;
};

// Dense layers with ReLU between them; McMahan 2017, section 3, has one with two hidden layers.
nn::Sequential dense(const ModelSpec& spec) {
  nn::Sequential model({{"flatten", nn::Flatten()}});
  if (spec.scales_inputs) model->push_back("input", Scaling(spec.input[0], true));
  std::int64_t before = spec.input[0];
  std::size_t number = 0;
  for (const std::int64_t width : spec.hidden) {
    ++number;
    model->push_back(fmt::format("fc{}", number), linear(std::exchange(before, width), width));
    model->push_back(fmt::format("relu{}", number), relu());
  }
  std::string last = spec.hidden.empty() ? "fc" : fmt::format("fc{}", number + 1);
  model->push_back(std::move(last), linear(before, spec.outputs));
  return model;
}

// The CNN of McMahan 2017, section 3.
nn::Sequential cnn(const ModelSpec& spec) {
  const std::int64_t left = 64 * (spec.input[1] / 2 / 2) * (spec.input[2] / 2 / 2);
  return nn::Sequential({{"conv1", conv(spec.input[0], 32, 2)},
                         {"pool1", pool_relu()},
                         {"conv2", conv(32, 64, 2)},
                         {"pool2", pool_relu()},
                         {"flatten", nn::Flatten()},
                         {"fc1", linear(left, 512)},
                         {"relu1", relu()},
                         {"fc2", linear(512, spec.outputs)}});
}

Layer<nn::Conv2dImpl> conv3x3(std::int64_t from, std::int64_t to, std::int64_t stride) {
  return make_layer<nn::Conv2dImpl>(
      nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

// He 2016, figure 2 and section 3.3, option A: where the channels double, the image halves, and the
// shortcut takes every other pixel and has zeros for the new channels.
struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t from, std::int64_t to)
      : conv1(register_module("conv1", conv3x3(from, to, from == to ? 1 : 2))),
        bn1(register_module("bn1", batch_norm(to))),
        conv2(register_module("conv2", conv3x3(to, to, 1))),
        bn2(register_module("bn2", batch_norm(to))),
        added(to - from) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = (*bn2)((*conv2)((*bn1)((*conv1)(x)).relu_()));
    if (added == 0) return torch::relu(y + x);
    const torch::Tensor fewer = x.slice(2, 0, {}, 2).slice(3, 0, {}, 2);
    return torch::relu(y + torch::constant_pad_nd(fewer, {0, 0, 0, 0, 0, added}));
  }

  Layer<nn::Conv2dImpl> conv1;
  Layer<nn::BatchNorm2dImpl> bn1;
  Layer<nn::Conv2dImpl> conv2;
  Layer<nn::BatchNorm2dImpl> bn2;
  std::int64_t added;  // Channels.
};

// He 2016, section 4.2: 6n + 2 layers.
nn::Sequential resnet(const ModelSpec& spec) {
  nn::Sequential model({{"conv1", conv3x3(spec.input[0], 16, 1)}, {"bn1", batch_norm(16)}});
  model->push_back("relu1", relu());
  std::int64_t channels = 16;
  for (std::int64_t b = 0; b < 3 * spec.blocks; ++b) {
    const std::int64_t before = std::exchange(channels, std::int64_t{16} << (b / spec.blocks));
    model->push_back(fmt::format("block{}", b + 1), ResidualBlock(before, channels));
  }
  model->push_back("pool", nn::Functional([](const torch::Tensor& x) { return x.mean({2, 3}); }));
  model->push_back("fc", linear(channels, spec.outputs));
  return model;
}

/// Adds a learned vector for each place in the context. Radford 2018, section 3.1.
struct Positions : nn::Module {
  Positions(std::int64_t context, std::int64_t width, const PassGroups& groups)
      : weight(register_parameter("weight", torch::zeros({context, width}))), groups_(groups) {}

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor own = weight;
    if (groups_.context != nullptr)
      own = weight.index_select(0, own_places(*groups_.context, weight.size(0), x.device()));
    const TensorGroup* const group = groups_.tensor;
    const bool has_part = group != nullptr && group->division().divides_tokens;
    return x + own.narrow(0, has_part ? group->rank() * x.size(1) : 0, x.size(1));
  }

  torch::Tensor weight;
  PassGroups groups_;
};

/// Radford 2019 (GPT-2), section 2.3: a norm before the attention and one before the dense layers,
/// in whose place there may be experts.
struct TransformerBlock : nn::Module {
  using Column = LayerImpl<ColumnLinearImpl>;
  using Row = LayerImpl<RowLinearImpl>;

  /// `mixture` may be null.
  TransformerBlock(std::int64_t width, std::int64_t heads, std::shared_ptr<MixtureImpl> mixture,
                   const PassGroups& groups)
      : norm1(register_module("norm1", layer_norm(width))),
        attention(
            register_module("attention", make_layer<ColumnLinearImpl>(width, 3 * width, groups))),
        projection(register_module("projection", make_layer<RowLinearImpl>(width, width, groups))),
        norm2(register_module("norm2", layer_norm(width))),
        experts(std::move(mixture)),
        heads_(divided(heads, groups.tensor)),
        context_(groups.context) {
    if (experts) {
      register_module("experts", experts);
      return;
    }
    fc1 = register_module("fc1", make_layer<ColumnLinearImpl>(width, 4 * width, groups));
    fc2 = register_module("fc2", make_layer<RowLinearImpl>(4 * width, width, groups));
  }

  static Layer<nn::LayerNormImpl> layer_norm(std::int64_t width) {
    return make_layer<nn::LayerNormImpl>(nn::LayerNormOptions({width}));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = x + (*projection)(attend((*norm1)(x)));
    const torch::Tensor z = (*norm2)(y);
    return y + (experts ? experts->forward(z) : (*fc2)(torch::gelu((*fc1)(z))));
  }

  /// Causal self-attention; Vaswani 2017, section 3.2. x: [n, length, width].
  torch::Tensor attend(const torch::Tensor& x) {
    const torch::Tensor made = (*attention)(x);
    const auto split =
        made.view({made.size(0), made.size(1), 3, heads_, -1}).permute({2, 0, 3, 1, 4});
    const torch::Tensor mixed =
        context_ == nullptr
            ? at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true)
            : attend_together(*context_, split[0], split[1], split[2]);
    return mixed.transpose(1, 2).flatten(2);
  }

  Layer<nn::LayerNormImpl> norm1;
  std::shared_ptr<Column> attention;  // Makes queries, keys and values.
  std::shared_ptr<Row> projection;
  Layer<nn::LayerNormImpl> norm2;
  std::shared_ptr<MixtureImpl> experts;  // Null: the two dense layers.
  std::shared_ptr<Column> fc1;
  std::shared_ptr<Row> fc2;
  std::int64_t heads_;     // As many as this process computes.
  ContextGroup* context_;  // Null: it has whole texts.
};

nn::Sequential transformer(const ModelSpec& spec, const PassGroups& groups) {
  TensorGroup* const group = groups.tensor;
  const auto tokens = make_layer<DividedEmbeddingImpl>(spec.outputs, spec.width, group);
  nn::Sequential model({{"tokens", tokens}});
  model->push_back("positions", make_layer<Positions>(spec.input[0], spec.width, groups));
  std::shared_ptr<Routing> routing;
  if (spec.experts.count > 0) routing = std::make_shared<Routing>(spec.experts, spec.layers);
  for (std::int64_t b = 0; b < spec.layers; ++b) {
    auto mixture = routing ? std::make_shared<MixtureImpl>(spec, b, routing, groups) : nullptr;
    model->push_back(fmt::format("block{}", b + 1),
                     TransformerBlock(spec.width, spec.heads, std::move(mixture), groups));
  }
  model->push_back("norm", TransformerBlock::layer_norm(spec.width));
  model->push_back("logits",
                   make_layer<nn::FunctionalImpl>([tokens, group](const torch::Tensor& x) {
                     return torch::linear(group == nullptr ? x : enter(*group, x), tokens->weight);
                   }));
  return model;
}

nn::Sequential network(const ModelSpec& spec, const PassGroups& groups) {
  switch (spec.family) {
    case ModelSpec::Family::synthetic: break;
    case ModelSpec::Family::mlp: return dense(spec);
    case ModelSpec::Family::lenet: return lenet();
    case ModelSpec::Family::cnn: return cnn(spec);
    case ModelSpec::Family::resnet: return resnet(spec);
    case ModelSpec::Family::transformer: return transformer(spec, groups);
  }
  return nullptr;
}

Result<void> check_layout(const Module& module, const Layout& layout, std::string_view model,
                          const LayersDivision& division) {
  const std::vector<NamedTensor> tensors = tensors_of(module);
  const auto disagree = [&](std::string_view what) {
    return Error(Errc::internal,
                 fmt::format("model \"{}\": module and layout differ: {}", model, what));
  };
  if (tensors.size() != layout.tensors().size()) {
    return disagree(fmt::format("{} and {} tensors", tensors.size(), layout.tensors().size()));
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto& [name, values] = tensors[t];
    const auto shape = values.sizes().vec();
    const auto wanted = part_shape(tensor, division);
    if (name != tensor.name || shape != wanted) {
      return disagree(fmt::format("{} [{}] and {} [{}]", name, fmt::join(shape, ", "), tensor.name,
                                  fmt::join(wanted, ", ")));
    }
    // Another kind of buffer would exist on this client only and be lost at a restart.
    if (!values.requires_grad() && !is_statistic(name))
      return disagree(fmt::format("{} is a buffer but not a statistic of a BatchNorm", name));
  }
  return {};
}

}  // namespace

bool norms_one_value(const ModelSpec& spec) {
  // The last blocks of a ResNet have a quarter of the image's height and width, rounded up.
  return spec.family == ModelSpec::Family::resnet && spec.input[1] <= 4 && spec.input[2] <= 4;
}

Result<Module> make_module(std::string_view model, const PassGroups& groups) {
  FL_TRY(const ModelSpec spec, parse_model(model));
  const TensorDivision division =
      groups.tensor == nullptr ? TensorDivision() : groups.tensor->division();
  FL_CHECK(check_division(spec, model, division));
  if (groups.context != nullptr)
    FL_CHECK(check_context(spec, model, groups.context->division(), division));
  if (groups.pipeline != nullptr)
    FL_CHECK(check_pipeline(spec, model, groups.pipeline->division()));
  const ExpertDivision experts =
      groups.experts == nullptr ? ExpertDivision() : groups.experts->division();
  FL_CHECK(check_experts(spec, model, experts));
  nn::Sequential made = network(spec, groups);
  if (made.is_empty()) {
    return Error(Errc::invalid_input,
                 fmt::format("there is no libtorch module for model \"{}\"", model));
  }
  if (spec.scales_targets) made->push_back("target", Scaling(spec.outputs, false));
  FL_TRY(const Layout layout, builtin_layout(model));
  Module module = made.ptr();
  FL_CHECK(check_layout(module, layout, model, {.tensors = division, .experts = experts}));
  return module;
}

std::vector<NamedTensor> tensors_of(const Module& module) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : module->named_parameters())
    tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) {
    if (!item.key().ends_with("num_batches_tracked"))
      tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

}  // namespace fl
