// SPDX-License-Identifier: Apache-2.0
// Ranks that have the texts of a transformer together, against one process: context parallelism in
// a ring, with gathered keys and by heads, and grids of it with the other ways of dividing.
#include "client/learn/torch/divided_attention.hpp"
#include "client/site/rank/pass_ranks.hpp"
#include "tests/client/site/grids.hpp"  // libtorch before doctest: both have CHECK.
#include "tests/support/some_of.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

constexpr ContextWay ways[] = {ContextWay::ring, ContextWay::gather, ContextWay::ulysses};

/// Grids with each way.
std::vector<Shape> shapes_of_all_ways(int ranks_max) {
  std::vector<Shape> all;
  for (const ContextWay way : ways) {
    all.push_back({1, 1, false, 2, way});
    all.push_back({1, 1, false, 4, way});
    all.push_back({2, 1, false, 2, way});
    all.push_back({1, 2, false, 2, way});
    all.push_back({1, 2, true, 2, way});
    all.push_back({2, 2, true, 2, way});
  }
  std::erase_if(all, [&](const Shape& shape) { return shape.size() > ranks_max; });
  return all;
}

/// Some queries, keys and values, or a gradient: [2, 4, tokens, 8].
torch::Tensor made_up(std::int64_t tokens, std::uint64_t seed) {
  return torch::randn({2, 4, tokens, 8}, at::detail::createCPUGenerator(seed),
                      torch::TensorOptions());
}

}  // namespace

TEST_CASE("the gradient of ranks that have texts together is that of one process") {
  const std::vector<float> wanted = gradient_alone(dense);
  for (const Shape& shape : some_of(shapes_of_all_ways(8))) {
    for (const int zero : {0, 3}) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(dense, shape);
      training.zero = zero;
      CHECK(worst_distance(dense, joined(shape.size(), training, note_gradient), wanted) < 2e-6);
    }
  }
}

TEST_CASE("ranks that have texts together train as one process does, with the same bits for ZeRO") {
  for (const Shape& shape : some_of(shapes_of_all_ways(4))) {
    CAPTURE(shape.name());
    Training training = training_of(dense, shape);
    const auto wanted = joined_update(train_ranks(shape.size(), training));
    CHECK(distance(training, wanted, train_alone(training, static_cast<std::uint32_t>(shape.dp))) <
          1e-6);
    for (const int zero : {1, 3}) {
      CAPTURE(zero);
      training.zero = zero;
      training.recomputes = zero == 3;
      const auto ranks = train_ranks(shape.size(), training);
      CHECK(joined_update(ranks) == wanted);
      for (const Trained& rank : ranks) CHECK(rank.report.loss == ranks[0].report.loss);
    }
  }
}

TEST_CASE("ranks with texts together clip by the whole gradient, over unlike numbers of passes") {
  for (const Shape& shape :
       {Shape{2, 1, false, 2, ContextWay::ring}, Shape{1, 2, true, 2, ContextWay::gather},
        Shape{1, 1, false, 4, ContextWay::ulysses}}) {
    CAPTURE(shape.name());
    Training training = training_of(dense, shape);
    training.zero = 3;
    training.settings.momentum = 0;
    training.settings.accumulate = 2;
    training.settings.clip_norm = 0.5;
    training.settings.local_steps = 7;
    CHECK(distance_from_alone(shape.size(), training) < 1e-6);
  }
}

TEST_CASE("experts of ranks with texts together get the gradient of one process") {
  const std::string model = dense + ",experts=4,aux=0.1,z=0.01";  // Capacity is a rank's own.
  const std::vector<float> wanted = gradient_alone(model);
  for (const Shape& shape : some_of(shapes_of_all_ways(4))) {
    for (const int zero : {0, 3}) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(model, shape);
      training.zero = zero;
      CHECK(worst_distance(model, joined(shape.size(), training, note_gradient), wanted) < 2e-6);
      if (zero == 0 || shape.size() == 2) continue;
      training.settings.momentum = 0;
      CHECK(distance_from_alone(shape.size(), training) < 1e-6);
    }
  }
}

TEST_CASE("mixed precision of ranks with texts together is near fp32") {
  for (const ContextWay way : ways) {
    for (const std::string& precision : std::vector<std::string>{"bf16", "fp16", "adaptive:fp16"}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(precision);
      const MixedStep step = mixed_step({1, 1, false, 4, way}, precision);
      CHECK(step.is_other);
      CHECK(step.distance < 2e-2);
      CHECK(step.is_repeatable);
    }
  }
}

TEST_CASE("ranks with texts together evaluate as one process does") {
  for (const std::string& model : {dense, dense + ",experts=4,capacity=1"}) {
    const EvalReport wanted = evaluation_alone(model);
    for (const Shape& shape : some_of(shapes_of_all_ways(4))) {
      CAPTURE(model);
      CAPTURE(shape.name());
      // How many tokens are too many depends on those that a rank has.
      const bool has_limit = model != dense;
      for (const EvalReport& report : evaluations(model, shape))
        CHECK(are_alike(report, wanted, has_limit ? 1 : 0));
    }
  }
}

TEST_CASE("attention to a part of the keys, fused or not, and its gradients") {
  for (const bool is_causal : {false, true}) {
    for (const std::int64_t keys_count : {5, 12}) {
      if (is_causal && keys_count != 5) continue;
      CAPTURE(is_causal);
      CAPTURE(keys_count);
      const torch::Tensor queries = made_up(5, 1).requires_grad_();
      const torch::Tensor keys = made_up(keys_count, 2).requires_grad_();
      const torch::Tensor values = made_up(keys_count, 3).requires_grad_();
      const torch::Tensor gradient = made_up(5, 4);
      torch::Tensor products = torch::matmul(queries, keys.transpose(2, 3)) / std::sqrt(8.0);
      if (is_causal) products = products + torch::full({5, 5}, -1e9).triu(1);
      const torch::Tensor wanted = torch::matmul(torch::softmax(products, 3), values);
      wanted.backward(gradient);
      const torch::NoGradGuard no_grad;
      for (const bool is_fused : {false, true}) {
        CAPTURE(is_fused);
        const PartialAttention partial{.is_fused = is_fused};
        const auto [outputs, exponents] =
            partial.attend(queries.detach(), keys.detach(), values.detach(), is_causal);
        CHECK(torch::allclose(outputs, wanted, 1e-5, 1e-6));
        CHECK(torch::allclose(exponents, products.logsumexp(3), 1e-5, 1e-6));
        const auto [q, k, v] = partial.gradients(gradient, queries.detach(), keys.detach(),
                                                 values.detach(), outputs, exponents, is_causal);
        CHECK(torch::allclose(q, queries.grad(), 1e-5, 1e-6));
        CHECK(torch::allclose(k, keys.grad(), 1e-5, 1e-6));
        CHECK(torch::allclose(v, values.grad(), 1e-5, 1e-6));
      }
    }
  }
}

TEST_CASE("attention over the tokens of all ranks sends as many bytes as the formulas say") {
  constexpr std::int64_t tokens = 8;  // A rank has so many of each text.
  for (const int size : {2, 4}) {
    for (const ContextWay way : ways) {
      CAPTURE(size);
      CAPTURE(static_cast<int>(way));
      on_ranks(size, [&](Ranks& ranks) {
        std::vector<int> all(static_cast<std::size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        ContextRanks group({.ranks = size, .way = way});
        group.enter(ranks.subgroup(all, "texts"));
        const torch::Tensor queries = made_up(tokens, 1).requires_grad_();
        const std::uint64_t before = ranks.bytes_sent();
        const torch::Tensor made =
            attend_together(group, queries, made_up(tokens, 2), made_up(tokens, 3));
        const auto one = static_cast<std::uint64_t>(queries.numel() * 4);
        const auto others = static_cast<std::uint64_t>(size - 1);
        const bool is_ulysses = way == ContextWay::ulysses;
        CHECK(
            ranks.bytes_sent() - before ==
            (is_ulysses ? 4 * one * others / static_cast<std::uint64_t>(size) : 2 * one * others));
        const std::uint64_t between = ranks.bytes_sent();
        made.sum().backward();
        CHECK(
            ranks.bytes_sent() - between ==
            (is_ulysses ? 4 * one * others / static_cast<std::uint64_t>(size) : 4 * one * others));
      });
    }
  }
}

}  // namespace fl::test
