// SPDX-License-Identifier: Apache-2.0
// Layers whose tensors are divided over a TensorGroup, and how values go into such layers and come
// out of them, with their gradients. Shoeybi et al., "Megatron-LM", 2019, section 3; with divided
// tokens: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
// MLSys 2023, section 4.2.2. A layer without a group is libtorch's own. Only the files of
// fl_client_learn_torch and its tests include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/torch/pass_group.hpp"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>

namespace fl {

/// How many of `size` heads, rows or values a rank of the group has; all without a group.
[[nodiscard]] inline std::int64_t divided(std::int64_t size, const TensorGroup* group) {
  return group == nullptr ? size : size / group->division().ranks;
}

/// x: [n, length, width], the same on all ranks or, with divided tokens, those of a part of the
/// length. Returns all tokens, of which each rank computes something else; their gradients are
/// added up over the ranks.
[[nodiscard]] torch::Tensor enter(TensorGroup& group, const torch::Tensor& x);
/// Returns the sum over the ranks of their parts of a result [n, length, width]; with divided
/// tokens those of this rank's.
[[nodiscard]] torch::Tensor leave(TensorGroup& group, const torch::Tensor& part);

// Without a division of tokens, whatever the group has: for layers that need all.
/// Values that are the same on all ranks; their gradients are added up.
[[nodiscard]] torch::Tensor copy_to_ranks(TensorGroup& group, const torch::Tensor& x);
/// The sum of all ranks' parts; its gradient is the same on all ranks.
[[nodiscard]] torch::Tensor sum_of_ranks(TensorGroup& group, const torch::Tensor& part);
/// Makes all tokens of those of a part of the length. All ranks go on in the same way, and their
/// gradients are the same.
[[nodiscard]] torch::Tensor all_tokens(TensorGroup& group, const torch::Tensor& own);
/// Takes this rank's tokens of those that all ranks have.
[[nodiscard]] torch::Tensor own_tokens(TensorGroup& group, const torch::Tensor& all);

/// A dense layer of which each rank has some outputs.
struct ColumnLinearImpl : torch::nn::LinearImpl {
  ColumnLinearImpl(std::int64_t inputs, std::int64_t outputs, const PassGroups& groups);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  PassGroups groups_;
};

/// A dense layer of which each rank has some inputs; the outputs are the sum, to which the bias is
/// added once.
struct RowLinearImpl : torch::nn::LinearImpl {
  RowLinearImpl(std::int64_t inputs, std::int64_t outputs, const PassGroups& groups);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  PassGroups groups_;
};

/// An embedding of which each rank has some rows.
struct DividedEmbeddingImpl : torch::nn::EmbeddingImpl {
  DividedEmbeddingImpl(std::int64_t rows, std::int64_t width, TensorGroup* group);
  torch::Tensor forward(const torch::Tensor& numbers);

 private:
  TensorGroup* group_;
};

/// The cross-entropy of logits of which each rank has those of some classes: fp32 [n, classes /
/// ranks], never brought together. targets: int64 [n], where no_target counts for nothing.
/// at::Reduction::Mean or Sum; no dimension, the same on all ranks.
[[nodiscard]] torch::Tensor divided_cross_entropy(TensorGroup& group, const torch::Tensor& logits,
                                                  const torch::Tensor& targets,
                                                  at::Reduction::Reduction reduction);

}  // namespace fl
