// SPDX-License-Identifier: Apache-2.0
// Passage: values go from rank to rank in a forward pass, and their gradients another way back.
// Only the files of fl_client_learn_torch include this header, because it brings libtorch's
// headers.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cstdint>

namespace fl {

/// Notes the group of a torch::autograd::Function for its backward pass.
template <class Group>
void keep_group(torch::autograd::AutogradContext& context, Group& group) {
  context.saved_data["group"] = reinterpret_cast<std::int64_t>(&group);
}
template <class Group>
[[nodiscard]] Group& kept_group(torch::autograd::AutogradContext& context) {
  return *reinterpret_cast<Group*>(context.saved_data["group"].toInt());
}

/// `there` makes the outputs of x, and `back` of their gradient that of x: functions of a Group&
/// and a tensor. The group must outlive the backward pass.
template <class Group, auto there, auto back>
struct Passage : torch::autograd::Function<Passage<Group, there, back>> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               Group* group) {
    keep_group(*context, *group);
    return there(*group, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {back(kept_group<Group>(*context), gradients[0]), torch::Tensor()};
  }
};

}  // namespace fl
