// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/divided_attention.hpp"

#include "client/learn/torch/passage.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace fl {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Scaled products of queries and keys in fp32; those that are masked are -inf.
torch::Tensor products_of(const torch::Tensor& queries, const torch::Tensor& keys, bool is_causal) {
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(3)));
  const torch::Tensor products =
      torch::matmul(queries.to(torch::kFloat32), keys.to(torch::kFloat32).transpose(2, 3)) * scale;
  if (!is_causal) return products;
  const torch::Tensor is_later =
      torch::ones({products.size(2), products.size(3)}, products.options().dtype(torch::kBool))
          .triu(1);
  return products.masked_fill(is_later, -std::numeric_limits<float>::infinity());
}

PartialAttention partial_on(const torch::Tensor& queries) { return {.is_fused = queries.is_cpu()}; }

/// The attention of some queries to all keys that were added so far.
class Merged {
 public:
  void add(const torch::Tensor& outputs, const torch::Tensor& exponents) {
    if (!outputs_.defined()) {
      outputs_ = outputs.to(torch::kFloat32);
      exponents_ = exponents;
      return;
    }
    // In fp32: where a sum is rounded to 16 bits at each part, the errors add up.
    const torch::Tensor both = torch::logaddexp(exponents_, exponents);
    outputs_ = outputs_ * (exponents_ - both).exp().unsqueeze(3) +
               outputs.to(torch::kFloat32) * (exponents - both).exp().unsqueeze(3);
    exponents_ = both;
  }
  [[nodiscard]] const torch::Tensor& outputs() const { return outputs_; }
  [[nodiscard]] const torch::Tensor& exponents() const { return exponents_; }

 private:
  torch::Tensor outputs_;    // fp32 [n, heads, queries, width].
  torch::Tensor exponents_;  // fp32 [n, heads, queries].
};

/// Calls work(mine, theirs, is_causal) for each pair of a chunk of this rank's queries and one of
/// another rank's keys that the former see: with the chunks' numbers among those of their rank.
template <class Work>
void for_each_pair(const ContextGroup& group, std::int64_t other, const Work& work) {
  const auto mine = chunks_of(group.division(), group.rank());
  const auto theirs = chunks_of(group.division(), other);
  for (std::size_t i = 0; i < mine.size(); ++i)
    for (std::size_t j = 0; j < theirs.size(); ++j)
      if (theirs[j] <= mine[i])
        work(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j), theirs[j] == mine[i]);
}

/// One of the chunks of a rank's tokens: of [n, heads, tokens, ...].
class Chunks {
 public:
  Chunks(const ContextGroup& group, const torch::Tensor& own)
      : count_(static_cast<std::int64_t>(chunks_of(group.division(), 0).size())),
        length_(own.size(2) / count_) {}
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] torch::Tensor of(const torch::Tensor& tokens, std::int64_t number) const {
    return tokens.narrow(2, number * length_, length_);
  }

 private:
  std::int64_t count_;
  std::int64_t length_;
};

/// Keys and values of all ranks, one rank's after the other, this one's first; in a backward pass
/// their gradients, too, which go back to where the keys are. [2, n, heads, tokens, width].
class Keys {
 public:
  Keys(ContextGroup& group, const torch::Tensor& own)
      : group_(group), ranks_(group.division().ranks), now_(own) {
    if (group.division().way == ContextWay::gather) all_ = group.gather(own);
  }

  /// Calls use(rank, keys and values) for all ranks.
  template <class Use>
  void visit(const Use& use) {
    for (std::int64_t turn = 0; turn < ranks_; ++turn) {
      const std::int64_t rank = rank_at(turn);
      if (all_.defined()) {
        use(rank, all_[rank]);
        continue;
      }
      use(rank, now_);
      if (turn + 1 < ranks_) now_ = group_.pass_on(now_);
    }
  }

  /// Calls use(rank, keys and values, their gradients) for all ranks; it adds to the latter: fp32.
  /// Returns the sum of what all ranks have added for this rank's own.
  template <class Use>
  [[nodiscard]] torch::Tensor visit_back(const Use& use) {
    if (all_.defined()) {
      const torch::Tensor added = torch::zeros_like(all_, torch::kFloat32);
      visit(
          [&](std::int64_t rank, const torch::Tensor& theirs) { use(rank, theirs, added[rank]); });
      return group_.sum_parts(added);
    }
    // The gradients that this rank adds for its own keys are not sent round with the others, which
    // saves one transfer.
    const torch::Tensor home = torch::zeros_like(now_, torch::kFloat32);
    torch::Tensor guests = torch::zeros_like(home);
    std::int64_t turn = 0;
    visit([&](std::int64_t rank, const torch::Tensor& theirs) {
      use(rank, theirs, turn == 0 ? home : guests);
      if (turn > 0) guests = group_.pass_on(guests);
      ++turn;
    });
    return home.add_(guests);
  }

 private:
  [[nodiscard]] std::int64_t rank_at(std::int64_t turn) const {
    return (group_.rank() + ranks_ - turn) % ranks_;
  }

  ContextGroup& group_;
  std::int64_t ranks_;
  torch::Tensor now_;
  torch::Tensor all_;  // With the way gather only: [ranks, 2, ...].
};

/// attend_together() in chunks: ring and gather.
struct ByChunks : torch::autograd::Function<ByChunks> {
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& queries,
                               const torch::Tensor& keys, const torch::Tensor& values,
                               ContextGroup* group) {
    keep_group(*context, *group);
    const Chunks chunks(*group, queries);
    std::vector<Merged> merged(static_cast<std::size_t>(chunks.count()));
    const auto meet = [&](std::int64_t rank, const torch::Tensor& theirs) {
      for_each_pair(*group, rank, [&](std::int64_t i, std::int64_t j, bool is_causal) {
        const auto [outputs, exponents] = partial_on(queries).attend(
            chunks.of(queries, i), chunks.of(theirs[0], j), chunks.of(theirs[1], j), is_causal);
        merged[static_cast<std::size_t>(i)].add(outputs, exponents);
      });
    };
    Keys(*group, torch::stack({keys, values})).visit(meet);
    std::vector<torch::Tensor> outputs;
    std::vector<torch::Tensor> exponents;
    for (const Merged& chunk : merged) {
      outputs.push_back(chunk.outputs());
      exponents.push_back(chunk.exponents());
    }
    const torch::Tensor all = torch::cat(outputs, 2).to(queries.scalar_type());
    context->save_for_backward({queries, keys, values, all, torch::cat(exponents, 2)});
    return all;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& group = kept_group<ContextGroup>(*context);
    const variable_list saved = context->get_saved_variables();
    const torch::Tensor& queries = saved[0];
    const torch::Tensor gradient = gradients[0].contiguous();
    const Chunks chunks(group, queries);
    const torch::Tensor of_queries = torch::zeros_like(queries, torch::kFloat32);
    const auto meet = [&](std::int64_t rank, const torch::Tensor& theirs,
                          const torch::Tensor& added) {
      for_each_pair(group, rank, [&](std::int64_t i, std::int64_t j, bool is_causal) {
        const auto [q, k, v] = partial_on(queries).gradients(
            chunks.of(gradient, i), chunks.of(queries, i), chunks.of(theirs[0], j),
            chunks.of(theirs[1], j), chunks.of(saved[3], i), chunks.of(saved[4], i), is_causal);
        chunks.of(of_queries, i).add_(q);
        chunks.of(added[0], j).add_(k);
        chunks.of(added[1], j).add_(v);
      });
    };
    const torch::Tensor own = Keys(group, torch::stack({saved[1], saved[2]})).visit_back(meet);
    const torch::ScalarType type = queries.scalar_type();
    return {of_queries.to(type), own[0].to(type), own[1].to(type), torch::Tensor()};
  }
};

/// [n, heads, own tokens, width] becomes [n, heads / ranks, all tokens, width].
torch::Tensor heads_for_tokens(ContextGroup& group, const torch::Tensor& x) {
  const std::int64_t ranks = group.division().ranks;
  const torch::Tensor parts =
      x.reshape({x.size(0), ranks, -1, x.size(2), x.size(3)}).permute({1, 0, 2, 3, 4}).contiguous();
  return group.exchange(parts).permute({1, 2, 0, 3, 4}).flatten(2, 3).contiguous();
}

/// The way back.
torch::Tensor tokens_for_heads(ContextGroup& group, const torch::Tensor& x) {
  const std::int64_t ranks = group.division().ranks;
  const torch::Tensor parts =
      x.reshape({x.size(0), x.size(1), ranks, -1, x.size(3)}).permute({2, 0, 1, 3, 4}).contiguous();
  return group.exchange(parts).permute({1, 0, 2, 3, 4}).flatten(1, 2).contiguous();
}

torch::Tensor attend_by_heads(ContextGroup& group, const torch::Tensor& queries,
                              const torch::Tensor& keys, const torch::Tensor& values) {
  using Out = Passage<ContextGroup, heads_for_tokens, tokens_for_heads>;
  using Home = Passage<ContextGroup, tokens_for_heads, heads_for_tokens>;
  const auto all = Out::apply(torch::cat({queries, keys, values}), &group).chunk(3);
  return Home::apply(at::scaled_dot_product_attention(all[0], all[1], all[2], {}, 0.0, true),
                     &group);
}

}  // namespace

torch::Tensor own_places(const ContextGroup& group, std::int64_t context, torch::Device device) {
  return torch::tensor(places_of(group.division(), group.rank(), context), torch::kInt64)
      .to(device);
}

std::pair<torch::Tensor, torch::Tensor> PartialAttention::attend(const torch::Tensor& queries,
                                                                 const torch::Tensor& keys,
                                                                 const torch::Tensor& values,
                                                                 bool is_causal) const {
  if (is_fused) {
    const auto [outputs, exponents] =
        at::_scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, is_causal);
    // By libtorch's version [n, heads, queries] or with the last two the other way round.
    const bool is_turned = exponents.size(1) != queries.size(1);
    return {outputs, is_turned ? exponents.transpose(1, 2) : exponents};
  }
  const torch::Tensor products = products_of(queries, keys, is_causal);
  const torch::Tensor exponents = products.logsumexp(3);
  const torch::Tensor shares = (products - exponents.unsqueeze(3)).exp_();
  return {torch::matmul(shares, values.to(torch::kFloat32)).to(queries.scalar_type()), exponents};
}

std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> PartialAttention::gradients(
    const torch::Tensor& gradient, const torch::Tensor& queries, const torch::Tensor& keys,
    const torch::Tensor& values, const torch::Tensor& outputs, const torch::Tensor& exponents,
    bool is_causal) const {
  if (is_fused) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, queries, keys, values, outputs, exponents, 0.0, is_causal);
  }
  const double scale = 1 / std::sqrt(static_cast<double>(queries.size(3)));
  const torch::Tensor shares =
      (products_of(queries, keys, is_causal) - exponents.unsqueeze(3)).exp_();
  const torch::Tensor whole = gradient.to(torch::kFloat32);
  const torch::Tensor of_shares = torch::matmul(whole, values.to(torch::kFloat32).transpose(2, 3));
  const torch::Tensor mean = (whole * outputs.to(torch::kFloat32)).sum(3, /*keepdim=*/true);
  const torch::Tensor of_products = shares * (of_shares - mean) * scale;
  return {torch::matmul(of_products, keys.to(torch::kFloat32)),
          torch::matmul(of_products.transpose(2, 3), queries.to(torch::kFloat32)),
          torch::matmul(shares.transpose(2, 3), whole)};
}

torch::Tensor attend_together(ContextGroup& group, const torch::Tensor& queries,
                              const torch::Tensor& keys, const torch::Tensor& values) {
  if (group.division().way == ContextWay::ulysses)
    return attend_by_heads(group, queries, keys, values);
  return ByChunks::apply(queries.contiguous(), keys.contiguous(), values.contiguous(), &group);
}

}  // namespace fl
