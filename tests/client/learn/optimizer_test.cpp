// SPDX-License-Identifier: Apache-2.0
// The optimizers on stretches of a vector. torch_trainer_test.cpp compares them with PyTorch's.
#include "client/learn/torch/optimizer.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {
namespace {

constexpr std::int64_t elements = 1003;

torch::Tensor values(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({elements});
}

/// The elements from `begin` to `end` of a training.
struct Stretch {
  Optimizer::Vectors vectors;
  Optimizer optimizer;

  Stretch(const TrainSettings& settings, std::int64_t begin, std::int64_t end,
          const Moments& kept = {})
      : vectors{.weights = values(1).slice(0, begin, end).clone(),
                .gradient = torch::zeros({end - begin}),
                .start = values(1).slice(0, begin, end).clone(),
                .correction = values(2).slice(0, begin, end)},
        optimizer(settings, vectors, kept) {}

  void step(std::uint64_t number, std::int64_t begin) {
    vectors.gradient.add_(values(10 + number).slice(0, begin, begin + vectors.gradient.size(0)));
    optimizer.step();
    CHECK(vectors.gradient.abs().max().item<float>() == 0);
  }
};

std::vector<float> joined(const std::vector<float>& first, const std::vector<float>& second) {
  std::vector<float> all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

}  // namespace

TEST_CASE("parts of a vector take the steps of the whole, bit for bit, and so do their moments") {
  using Kind = LocalOptimizer::Kind;
  for (const Kind kind : {Kind::sgd, Kind::nesterov, Kind::adam, Kind::adamw}) {
    CAPTURE(std::string(to_string(kind)));
    TrainSettings settings;
    settings.optimizer.kind = kind;
    settings.lr = 0.05;
    settings.momentum = settings.optimizer.is_sgd() ? 0.9 : 0;
    settings.weight_decay = 0.01;
    settings.proximal_mu = 0.1;
    constexpr std::int64_t cut = 334;  // No multiple of a vector register's width.
    Stretch whole(settings, 0, elements);
    Stretch first(settings, 0, cut);
    Stretch second(settings, cut, elements);
    for (std::uint64_t step = 0; step < 5; ++step) {
      whole.step(step, 0);
      first.step(step, 0);
      second.step(step, cut);
    }
    CHECK(torch::equal(whole.vectors.weights,
                       torch::cat({first.vectors.weights, second.vectors.weights})));
    const Moments all = whole.optimizer.moments();
    const Moments one = first.optimizer.moments();
    const Moments other = second.optimizer.moments();
    CHECK(all.first == joined(one.first, other.first));
    CHECK(all.second == joined(one.second, other.second));
    CHECK(all.steps == one.steps);

    // The next round goes on with them in another division.
    Stretch next(settings, 0, elements, all);
    Stretch part(
        settings, 500, elements,
        {{all.first.begin() + 500, all.first.end()},
         {all.second.empty() ? all.second.end() : all.second.begin() + 500, all.second.end()},
         all.steps});
    next.step(7, 0);
    part.step(7, 500);
    CHECK(torch::equal(next.vectors.weights.slice(0, 500, elements), part.vectors.weights));
    Stretch anew(settings, 0, elements);
    anew.step(7, 0);
    CHECK(!torch::equal(anew.vectors.weights, next.vectors.weights));
  }
}

}  // namespace fl::test
