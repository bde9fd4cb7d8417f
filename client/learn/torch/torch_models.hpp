// The built-in models as libtorch modules. Only the files of fl_learn_torch and its tests include
// this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/data/data.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

// All of torch/torch.h takes half as long again to compile.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <memory>
#include <string_view>
#include <vector>

namespace fl {

using Module = std::shared_ptr<torch::nn::SequentialImpl>;

inline constexpr std::uint32_t model_image_side = 28;  // Every built-in model sees 28 x 28 x 1.

/// A module from images [n, 1, 28, 28] in [0, 1] to logits [n, 10], on the CPU, whose parameters
/// and, behind them, statistics (is_statistic()) have the names, shapes and order of
/// builtin_layout(model). Its weights are arbitrary. A model without a module is invalid_input; one
/// that differs from the layout is internal, and names the first tensor that does.
[[nodiscard]] Result<Module> make_module(std::string_view model);

/// All parameters of a module, and their gradients, as flat vectors in the order of the layout:
/// loading a model is one copy, and an optimizer step a few operations on whole vectors.
struct FlatParameters {
  /// Moves the module to `device` and makes its tensors views into `shared`, the model of another,
  /// or where that is undefined into its own.
  FlatParameters(const Module& module, const Layout& layout, torch::Device device,
                 torch::Tensor shared = {});

  torch::Tensor model;     // fp32 [layout.elements()]
  torch::Tensor weights;   // Its parameters, which stand before the statistics: fp32 [P].
  torch::Tensor gradient;  // fp32 [P]; backward() adds to it.
  std::vector<torch::Tensor> variances;  // Views into `model`: each running_var.
};

}  // namespace fl
