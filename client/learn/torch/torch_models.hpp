// SPDX-License-Identifier: Apache-2.0
// The built-in models as libtorch modules. Only the files of fl_client_learn_torch and its tests
// include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/torch/torch_task.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

// torch/torch.h as a whole would take half as long again to compile.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <memory>
#include <string_view>
#include <vector>

namespace fl {

using Module = std::shared_ptr<torch::nn::SequentialImpl>;

/// Makes a module on the CPU that maps a batch of inputs (Batch, torch_examples.hpp) to outputs:
/// fp32 [n, outputs], or [n, context, 256] of a transformer. Its parameters and, after them, its
/// statistics (is_statistic()) have the names, shapes and order of builtin_layout(model). Its
/// weights are arbitrary. Errors: invalid_input for a model without a module; internal if the
/// module differs from the layout, with the first tensor that differs.
[[nodiscard]] Result<Module> make_module(std::string_view model);

/// Whether a BatchNorm of the module sees one value of each example, so that it can't train on one
/// example alone: a variance takes two values.
[[nodiscard]] bool norms_one_value(const ModelSpec& spec);

/// The parameters of a module and their gradients as flat vectors in the order of the layout. So
/// loading a model is one copy, and an optimizer step is a few operations on whole vectors.
struct FlatParameters {
  /// Moves the module to `device` and makes its tensors views into one flat tensor: `shared`, the
  /// model of another object, or a new one if `shared` is undefined.
  FlatParameters(const Module& module, const Layout& layout, torch::Device device,
                 torch::Tensor shared = {});

  /// Copies a model's values, fp32 [layout.elements()], into `model`.
  void load(const torch::Tensor& values);

  torch::Tensor model;     // fp32 [layout.elements()]
  torch::Tensor weights;   // View of its P parameters, which come before the statistics: fp32 [P].
  torch::Tensor gradient;  // fp32 [P]; backward() adds to it.
  TargetScale target;      // Views into `model`, if it scales its targets.
  std::vector<torch::Tensor> variances;  // Views into `model`, one for each running_var.
};

}  // namespace fl
