// SPDX-License-Identifier: Apache-2.0
// Causal attention over texts of which each rank of a ContextGroup has some tokens, with its
// gradients. In a ring, or with gathered keys and values, no rank computes a part of the attention
// twice, and none that is masked wholly; what its queries get from each part is merged by the
// logarithms of the sums of exponents (Rabe and Staats, "Self-attention Does Not Need O(n^2)
// Memory", 2021; Liu et al., "Ring Attention", ICLR 2024, section 3). Only the files of
// fl_client_learn_torch and its tests include this header, because it brings libtorch's headers.
#pragma once

#include "client/learn/torch/pass_group.hpp"

#include <torch/types.h>

#include <cstdint>
#include <tuple>
#include <utility>

namespace fl {

/// places_of() for this rank: int64 [own tokens].
[[nodiscard]] torch::Tensor own_places(const ContextGroup& group, std::int64_t context,
                                       torch::Device device);

/// queries, keys, values: [n, heads, own tokens, width of a head], those of places_of(). Returns
/// [n, heads, own tokens, width]. Sends (s: a text's tokens, h: heads x width, W: ranks, in values
/// of n s h / W): ring and gather 2 (W - 1) forward and 4 (W - 1) back, ulysses 4 (W - 1) / W each
/// way.
[[nodiscard]] torch::Tensor attend_together(ContextGroup& group, const torch::Tensor& queries,
                                            const torch::Tensor& keys, const torch::Tensor& values);

/// Attention to some of the keys, and what these have of its gradients. `is_fused`: by the CPU's
/// own operation, which keeps no products of queries and keys; else by plain operations, in fp32.
struct PartialAttention {
  bool is_fused = false;

  /// No key is masked, or with `is_causal` each query sees the keys up to its own place. Returns
  /// the outputs, in the queries' format, and for each query the logarithm of the sum of exponents,
  /// fp32 [n, heads, queries].
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> attend(const torch::Tensor& queries,
                                                               const torch::Tensor& keys,
                                                               const torch::Tensor& values,
                                                               bool is_causal) const;
  /// The parts that these keys have in the gradients of queries, keys and values. `outputs` and
  /// `exponents`: of the queries' attention to all keys that they see; `gradient`: of the outputs.
  [[nodiscard]] std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> gradients(
      const torch::Tensor& gradient, const torch::Tensor& queries, const torch::Tensor& keys,
      const torch::Tensor& values, const torch::Tensor& outputs, const torch::Tensor& exponents,
      bool is_causal) const;
};

}  // namespace fl
