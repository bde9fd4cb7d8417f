// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/divided_layers.hpp"

#include "client/learn/torch/passage.hpp"
#include "client/learn/torch/torch_examples.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace fl {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The sum over the ranks. Values of 16 bits travel as they are, and are added up in fp32.
torch::Tensor sum_over(TensorGroup& group, const torch::Tensor& values) {
  if (values.element_size() >= 4) {
    torch::Tensor sums = values.clone(torch::MemoryFormat::Contiguous);
    group.sum(sums);
    return sums;
  }
  const std::int64_t ranks = group.division().ranks;
  const std::int64_t filling = (ranks - values.numel() % ranks) % ranks;
  const torch::Tensor parts = torch::constant_pad_nd(values.flatten(), {0, filling});
  return group.gather(group.sum_parts(parts.view({ranks, -1})))
      .flatten()
      .narrow(0, 0, values.numel())
      .view(values.sizes());
}

/// [n, length / ranks, width] of each rank becomes [n, length, width].
torch::Tensor gather_tokens(TensorGroup& group, const torch::Tensor& own) {
  const torch::Tensor all = group.gather(own.transpose(0, 1).contiguous());
  return all.flatten(0, 1).transpose(0, 1).contiguous();
}

/// [n, length, width] of all ranks becomes the sum of those of this rank's tokens.
torch::Tensor sum_tokens(TensorGroup& group, const torch::Tensor& all) {
  const torch::Tensor by_token = all.transpose(0, 1).contiguous();
  const std::int64_t ranks = group.division().ranks;
  const torch::Tensor parts = by_token.view({ranks, -1, by_token.size(1), by_token.size(2)});
  return group.sum_parts(parts).transpose(0, 1).contiguous();
}

torch::Tensor take_tokens(TensorGroup& group, const torch::Tensor& all) {
  const std::int64_t length = all.size(1) / group.division().ranks;
  return all.narrow(1, group.rank() * length, length).contiguous();
}

torch::Tensor same(TensorGroup& /*group*/, const torch::Tensor& x) { return x.view_as(x); }

template <auto there, auto back>
using Way = Passage<TensorGroup, there, back>;

/// divided_cross_entropy(), with its gradient.
struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& logits,
                               const torch::Tensor& targets, TensorGroup* group, bool is_mean) {
    const std::int64_t classes = logits.size(1);
    torch::Tensor largest = logits.amax(1);
    group->maximum(largest);
    torch::Tensor shares = (logits - largest.unsqueeze(1)).exp_();
    const torch::Tensor number = targets - group->rank() * classes;
    const torch::Tensor is_here = number.ge(0).logical_and(number.lt(classes));
    const torch::Tensor place = number.clamp(0, classes - 1).unsqueeze(1);
    const torch::Tensor right =
        logits.gather(1, place).squeeze(1).masked_fill(is_here.logical_not(), 0);
    torch::Tensor sums = torch::stack({shares.sum(1), right});
    group->sum(sums);
    shares.div_(sums[0].unsqueeze(1));
    const torch::Tensor counts = targets.ne(no_target).to(logits.scalar_type());
    const torch::Tensor losses = (sums[0].log() + largest - sums[1]) * counts;
    const torch::Tensor weight = is_mean ? counts / counts.sum() : counts;
    context->save_for_backward({shares, place, is_here, weight});
    return is_mean ? losses.sum() / counts.sum() : losses.sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor weight = saved[3] * gradients[0];
    torch::Tensor made = saved[0] * weight.unsqueeze(1);
    made.scatter_add_(1, saved[1], (saved[2].to(weight.scalar_type()) * weight).neg().unsqueeze(1));
    return {made, torch::Tensor(), torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor copy_to_ranks(TensorGroup& group, const torch::Tensor& x) {
  return Way<same, sum_over>::apply(x, &group);
}

torch::Tensor sum_of_ranks(TensorGroup& group, const torch::Tensor& part) {
  return Way<sum_over, same>::apply(part, &group);
}

torch::Tensor all_tokens(TensorGroup& group, const torch::Tensor& own) {
  return Way<gather_tokens, take_tokens>::apply(own, &group);
}

torch::Tensor own_tokens(TensorGroup& group, const torch::Tensor& all) {
  return Way<take_tokens, gather_tokens>::apply(all, &group);
}

torch::Tensor enter(TensorGroup& group, const torch::Tensor& x) {
  if (!group.division().divides_tokens) return copy_to_ranks(group, x);
  return Way<gather_tokens, sum_tokens>::apply(x, &group);
}

torch::Tensor leave(TensorGroup& group, const torch::Tensor& part) {
  if (!group.division().divides_tokens) return sum_of_ranks(group, part);
  return Way<sum_tokens, gather_tokens>::apply(part, &group);
}

ColumnLinearImpl::ColumnLinearImpl(std::int64_t inputs, std::int64_t outputs,
                                   const PassGroups& groups)
    : LinearImpl(inputs, divided(outputs, groups.tensor)), groups_(groups) {}

torch::Tensor ColumnLinearImpl::forward(const torch::Tensor& x) {
  TensorGroup* const group = groups_.tensor;
  return dense_layer(groups_.put_off(), group == nullptr ? x : enter(*group, x), weight, bias);
}

RowLinearImpl::RowLinearImpl(std::int64_t inputs, std::int64_t outputs, const PassGroups& groups)
    : LinearImpl(divided(inputs, groups.tensor), outputs), groups_(groups) {}

torch::Tensor RowLinearImpl::forward(const torch::Tensor& x) {
  if (groups_.tensor == nullptr) return dense_layer(groups_.put_off(), x, weight, bias);
  return leave(*groups_.tensor, dense_layer(groups_.put_off(), x, weight, {})) + bias;
}

DividedEmbeddingImpl::DividedEmbeddingImpl(std::int64_t rows, std::int64_t width,
                                           TensorGroup* group)
    : EmbeddingImpl(divided(rows, group), width), group_(group) {}

torch::Tensor DividedEmbeddingImpl::forward(const torch::Tensor& numbers) {
  if (group_ == nullptr) return EmbeddingImpl::forward(numbers);
  const std::int64_t rows = weight.size(0);
  const torch::Tensor number = numbers - group_->rank() * rows;
  const torch::Tensor is_elsewhere = number.lt(0).logical_or(number.ge(rows));
  const torch::Tensor found = EmbeddingImpl::forward(number.clamp(0, rows - 1));
  return leave(*group_, found.masked_fill(is_elsewhere.unsqueeze(2), 0));
}

torch::Tensor divided_cross_entropy(TensorGroup& group, const torch::Tensor& logits,
                                    const torch::Tensor& targets,
                                    at::Reduction::Reduction reduction) {
  return CrossEntropy::apply(logits, targets, &group, reduction == at::Reduction::Mean);
}

}  // namespace fl
