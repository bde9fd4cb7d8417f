// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_models.hpp"

#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fl {

namespace {

namespace nn = torch::nn;

nn::Conv2d conv(std::int64_t from, std::int64_t to, std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 5).padding(padding));
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
                         {"fc1", nn::Linear(256, 120)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(120, 84)},
                         {"relu2", relu()},
                         {"fc3", nn::Linear(84, model_classes)}});
}

// The CNN of McMahan 2017, section 3.
nn::Sequential cnn() {
  return nn::Sequential({{"conv1", conv(1, 32, 2)},
                         {"pool1", pool_relu()},
                         {"conv2", conv(32, 64, 2)},
                         {"pool2", pool_relu()},
                         {"flatten", nn::Flatten()},
                         {"fc1", nn::Linear(64 * 7 * 7, 512)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(512, model_classes)}});
}

// "2NN" of McMahan 2017, section 3.
nn::Sequential mlp() {
  return nn::Sequential({{"flatten", nn::Flatten()},
                         {"fc1", nn::Linear(model_image_side * model_image_side, 200)},
                         {"relu1", relu()},
                         {"fc2", nn::Linear(200, 200)},
                         {"relu2", relu()},
                         {"fc3", nn::Linear(200, model_classes)}});
}

nn::Sequential logistic() {
  return nn::Sequential({{"flatten", nn::Flatten()},
                         {"fc", nn::Linear(model_image_side * model_image_side, model_classes)}});
}

nn::Conv2d conv3x3(std::int64_t from, std::int64_t to, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false));
}

// He 2016, figure 2 and section 3.3, option A: where the channels double, the image halves, and the
// shortcut takes every other pixel and has zeros for the new channels.
struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t from, std::int64_t to)
      : conv1(register_module("conv1", conv3x3(from, to, from == to ? 1 : 2))),
        bn1(register_module("bn1", nn::BatchNorm2d(to))),
        conv2(register_module("conv2", conv3x3(to, to, 1))),
        bn2(register_module("bn2", nn::BatchNorm2d(to))),
        added(to - from) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = bn2(conv2(bn1(conv1(x)).relu_()));
    if (added == 0) return torch::relu(y + x);
    const torch::Tensor fewer = x.slice(2, 0, {}, 2).slice(3, 0, {}, 2);
    return torch::relu(y + torch::constant_pad_nd(fewer, {0, 0, 0, 0, 0, added}));
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  std::int64_t added;  // Channels.
};

// He 2016, section 4.2: 6 blocks + 2 layers.
nn::Sequential resnet(std::int64_t blocks) {
  nn::Sequential model({{"conv1", conv3x3(1, 16, 1)}, {"bn1", nn::BatchNorm2d(16)}});
  model->push_back("relu1", relu());
  std::int64_t channels = 16;
  for (std::int64_t b = 0; b < 3 * blocks; ++b) {
    const std::int64_t before = std::exchange(channels, std::int64_t{16} << (b / blocks));
    model->push_back(fmt::format("block{}", b + 1), ResidualBlock(before, channels));
  }
  model->push_back("pool", nn::Functional([](const torch::Tensor& x) { return x.mean({2, 3}); }));
  model->push_back("fc", nn::Linear(channels, model_classes));
  return model;
}

nn::Sequential resnet8() { return resnet(1); }
nn::Sequential resnet20() { return resnet(3); }

struct ModuleRow {
  std::string_view model;
  nn::Sequential (*make)();
};
constexpr std::array<ModuleRow, 6> modules = {{{"lenet", lenet},
                                               {"cnn", cnn},
                                               {"resnet8", resnet8},
                                               {"resnet20", resnet20},
                                               {"mlp", mlp},
                                               {"logistic", logistic}}};

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// The tensors of a module that server and clients exchange: its parameters, then its statistics. A
/// BatchNorm's count of batches (num_batches_tracked) is not exchanged, because with a momentum, as
/// in all models here, nothing depends on it.
NamedTensors tensors_of(const Module& module) {
  NamedTensors tensors;
  for (const auto& item : module->named_parameters())
    tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module->named_buffers()) {
    if (!item.key().ends_with("num_batches_tracked"))
      tensors.emplace_back(item.key(), item.value());
  }
  return tensors;
}

Result<void> check_layout(const Module& module, const Layout& layout, std::string_view model) {
  const NamedTensors tensors = tensors_of(module);
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
    if (name != tensor.name || shape != tensor.shape) {
      return disagree(fmt::format("{} [{}] and {} [{}]", name, fmt::join(shape, ", "), tensor.name,
                                  fmt::join(tensor.shape, ", ")));
    }
    // Another kind of buffer would exist on this client only and be lost at a restart.
    if (!values.requires_grad() && !is_statistic(name))
      return disagree(fmt::format("{} is a buffer but not a statistic of a BatchNorm", name));
  }
  return {};
}

}  // namespace

Result<Module> make_module(std::string_view model) {
  const auto row = std::ranges::find(modules, model, &ModuleRow::model);
  if (row == modules.end()) {
    return Error(Errc::invalid_input,
                 fmt::format("there is no libtorch module for model \"{}\"", model));
  }
  FL_TRY(const Layout layout, builtin_layout(model));
  Module module = row->make().ptr();
  FL_CHECK(check_layout(module, layout, model));
  return module;
}

FlatParameters::FlatParameters(const Module& module, const Layout& layout, torch::Device device,
                               torch::Tensor shared)
    : model(std::move(shared)) {
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(device);
  if (!model.defined())
    model = torch::zeros({static_cast<std::int64_t>(layout.elements())}, options);
  module->to(device);
  const NamedTensors tensors = tensors_of(module);
  FL_ASSERT(tensors.size() == layout.tensors().size());
  const auto parameters = module->parameters().size();
  const std::uint64_t end =
      parameters < tensors.size() ? layout.tensors()[parameters].offset : layout.elements();
  weights = model.narrow(0, 0, static_cast<std::int64_t>(end));
  gradient = torch::zeros_like(weights);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const auto view_into = [&](const torch::Tensor& flat) {
      return flat
          .narrow(0, static_cast<std::int64_t>(tensor.offset),
                  static_cast<std::int64_t>(tensor.elements))
          .view(tensor.shape);
    };
    const torch::Tensor& values = tensors[t].second;
    values.set_data(view_into(model));
    // If a tensor has a gradient already, backward() adds to it in place.
    if (t < parameters) values.mutable_grad() = view_into(gradient);
    if (tensor.name.ends_with("running_var")) variances.push_back(view_into(model));
  }
}

}  // namespace fl
