// SPDX-License-Identifier: Apache-2.0
// The built-in models as libtorch modules. Only the files of fl_client_learn_torch and its tests
// include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/torch/pass_group.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_spec.hpp"

// torch/torch.h as a whole would take half as long again to compile.
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

using Module = std::shared_ptr<torch::nn::SequentialImpl>;

/// Makes a module on the CPU that maps a batch of inputs (Batch, torch_examples.hpp) to outputs:
/// fp32 [n, outputs], or [n, context, 256] of a transformer. Its parameters and, after them, its
/// statistics (is_statistic()) have the names, shapes and order of builtin_layout(model). Its
/// parameters are 0 and have no memory of their own (drop_values()): give it to them by set_data()
/// before their values change. With a TensorGroup tensors have part_shape(), and the outputs are
/// those of a part of the vocabulary; with a ContextGroup inputs and outputs are those of this
/// rank's tokens. Errors: invalid_input for a model without a module or one that can't be divided
/// so; internal if the module differs from the layout, with the first tensor that differs.
[[nodiscard]] Result<Module> make_module(std::string_view model, const PassGroups& groups = {});

/// Whether a BatchNorm of the module sees one value of each example, so that it can't train on one
/// example alone: a variance takes two values.
[[nodiscard]] bool norms_one_value(const ModelSpec& spec);

/// A tensor of a module with its name there.
using NamedTensor = std::pair<std::string, torch::Tensor>;
/// The tensors of a module that server and clients exchange: its parameters, then its statistics. A
/// BatchNorm's count of batches (num_batches_tracked) is not exchanged, because with a momentum, as
/// in all models here, nothing depends on it.
[[nodiscard]] std::vector<NamedTensor> tensors_of(const Module& module);

}  // namespace fl
