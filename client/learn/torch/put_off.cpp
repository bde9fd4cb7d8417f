// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/put_off.hpp"

#include "client/learn/torch/passage.hpp"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/linear.h>

#include <utility>

namespace fl {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void add_gradient(const torch::Tensor& parameter, const torch::Tensor& gradient) {
  const torch::Tensor whole = gradient.to(parameter.scalar_type());
  if (parameter.grad().defined())
    parameter.mutable_grad().add_(whole);
  else
    parameter.mutable_grad() = whole.contiguous();
}

/// A dense layer without a bias whose weights get their gradients later.
struct Dense : torch::autograd::Function<Dense> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, PutOff* put_off) {
    keep_group(*context, *put_off);
    context->save_for_backward({x, weight});
    return x.matmul(weight.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor gradient = gradients[0];
    // In a mixed pass the layer has computed with rounded values: so do its gradients.
    const torch::Tensor x = saved[0].to(gradient.scalar_type());
    const torch::Tensor weight = saved[1];
    kept_group<PutOff>(*context).add([x, weight, gradient] {
      const torch::NoGradGuard no_grad;
      const torch::Tensor rows = gradient.reshape({-1, gradient.size(-1)});
      add_gradient(weight, rows.t().mm(x.reshape({-1, x.size(-1)})));
    });
    torch::Tensor of_x = gradient.matmul(weight.to(gradient.scalar_type()));
    return {of_x.to(saved[0].scalar_type()), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

void PutOff::begin() {
  work_.clear();
  is_on_ = true;
}

PutOff::Work PutOff::take() {
  is_on_ = false;
  return std::exchange(work_, {});
}

void PutOff::add(std::function<void()> work) {
  if (is_on_)
    work_.push_back(std::move(work));
  else
    work();
}

torch::Tensor dense_layer(PutOff* put_off, const torch::Tensor& x, const torch::Tensor& weight,
                          const torch::Tensor& bias) {
  if (put_off == nullptr) return torch::nn::functional::linear(x, weight, bias);
  torch::Tensor outputs = Dense::apply(x, weight, put_off);
  return bias.defined() ? outputs.add_(bias) : outputs;
}

}  // namespace fl
