// SPDX-License-Identifier: Apache-2.0
// Ranks that have the layers of a transformer together, against one process: tensor parallelism,
// divided tokens, and grids of them with parts of batches and ZeRO.
#include "client/learn/torch/divided_layers.hpp"
#include "client/site/rank/pass_ranks.hpp"
#include "tests/client/site/grids.hpp"
#include "tests/support/some_of.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

constexpr Shape shapes[] = {{1, 2, false}, {1, 2, true},  {1, 4, false},
                            {1, 4, true},  {2, 2, false}, {2, 2, true}};

}  // namespace

TEST_CASE("the gradient of ranks that have layers together is that of one process") {
  for (const std::string& model : {dense, mixture}) {
    const std::vector<float> wanted = gradient_alone(model);
    for (const Shape& shape : shapes) {
      // Each rank's tokens fill experts up by themselves.
      if (model == mixture && shape.dp > 1) continue;
      for (const int zero : {0, 3}) {
        CAPTURE(model);
        CAPTURE(shape.name());
        CAPTURE(zero);
        Training training = training_of(model, shape);
        training.zero = zero;
        CHECK(worst_distance(model, joined(shape.size(), training, note_gradient), wanted) < 2e-6);
      }
    }
  }
}

TEST_CASE("grids of ranks train as one process does, and with the same bits for each ZeRO") {
  for (const Shape& shape : some_of(shapes)) {
    for (const bool recomputes : {false, true}) {
      if (recomputes && shape.dp * shape.tp < 4) continue;
      CAPTURE(shape.name());
      CAPTURE(recomputes);
      Training training = training_of(dense, shape);
      training.recomputes = recomputes;
      const auto wanted = joined_update(train_ranks(shape.size(), training));
      CHECK(distance(training, wanted,
                     train_alone(training, static_cast<std::uint32_t>(shape.dp))) < 1e-6);
      for (const int zero : {1, 2, 3}) {
        if (recomputes && zero < 3) continue;
        CAPTURE(zero);
        training.zero = zero;
        const auto ranks = train_ranks(shape.size(), training);
        CHECK(joined_update(ranks) == wanted);
        for (const Trained& rank : ranks) CHECK(rank.report.loss == ranks[0].report.loss);
      }
    }
  }
}

TEST_CASE("a grid clips by the length of the whole gradient, over unlike numbers of passes") {
  for (const Shape& shape : some_of(shapes)) {
    for (const int zero : {0, 3}) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(dense, shape);
      training.zero = zero;
      training.settings.momentum = 0;
      training.settings.accumulate = 2;
      training.settings.clip_norm = 0.5;
      training.settings.local_steps = 7;
      CHECK(distance_from_alone(shape.size(), training) < 1e-6);
    }
  }
}

TEST_CASE("divided experts train as those of one process do") {
  for (const Shape& shape : some_of(shapes)) {
    if (shape.dp > 1) continue;
    for (const int zero : {0, 3}) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(mixture, shape);
      training.settings.momentum = 0;
      training.zero = zero;
      CHECK(distance_from_alone(shape.size(), training) < 1e-6);
      training.recomputes = true;
      CHECK(distance_from_alone(shape.size(), training) < 1e-6);
    }
  }
}

TEST_CASE("mixed precision of divided layers is near fp32, and falls back together") {
  for (const bool divides_tokens : {false, true}) {
    for (const std::string& precision : std::vector<std::string>{"bf16", "fp16", "adaptive:fp16"}) {
      CAPTURE(divides_tokens);
      CAPTURE(precision);
      const MixedStep step = mixed_step({2, 2, divides_tokens}, precision);
      CHECK(step.is_other);
      CHECK(step.distance < 2e-2);
      CHECK(step.is_repeatable);
    }
  }
}

TEST_CASE("a rank of which a part of a layer overflows keeps all from the step") {
  Training training = training_of(dense, {1, 2, false});
  training.precision = "fp16";
  training.settings = {.local_steps = 12, .batch_size = 1, .lr = 1e-4, .seed = 9};
  training.weights_times = 6;
  const auto two = train_ranks(2, training);
  CHECK(two[0].report.steps == two[1].report.steps);
  CHECK(two[0].report.loss == two[1].report.loss);
  training.zero = 3;
  CHECK(joined_update(train_ranks(2, training)) == joined_update(two));
}

TEST_CASE("a grid evaluates as one process does") {
  for (const std::string& model : {dense, mixture}) {
    const EvalReport wanted = evaluation_alone(model);
    for (const Shape& shape : shapes) {
      CAPTURE(model);
      CAPTURE(shape.name());
      for (const EvalReport& report : evaluations(model, shape)) CHECK(are_alike(report, wanted));
    }
  }
}

TEST_CASE("moments that are kept are found again by another grid") {
  for (const Shape& first : {Shape{1, 2, false}, Shape{2, 2, true}}) {
    CAPTURE(first.name());
    std::vector<std::vector<float>> updates;
    for (const Shape& second : {first, Shape{2, 1, false}, Shape{1, 4, false}}) {
      const TemporaryFolder folder;
      Training training = training_of(dense, first);
      training.settings.local_steps = 2;
      training.state = folder.path().string();
      training.zero = 1;
      train_ranks(first.size(), training);
      training.settings.round = 2;
      training.tp = second.tp;
      training.divides_tokens = second.divides_tokens;
      // For any number of parts the batches are the same.
      training.settings.batch_size = static_cast<std::uint32_t>(4 * first.dp / second.dp);
      updates.push_back(joined_update(train_ranks(second.size(), training)));
      CHECK(relative_distance(updates.back(), updates.front()) < 1e-5);
    }
    const TemporaryFolder folder;
    Training anew = training_of(dense, first);
    anew.settings.local_steps = 2;
    anew.settings.round = 2;
    anew.state = folder.path().string();
    anew.zero = 1;
    CHECK(relative_distance(joined_update(train_ranks(first.size(), anew)), updates.front()) > 0.1);
  }
}

TEST_CASE("a pass sends as many bytes as the formulas say") {
  constexpr std::int64_t n = 3;
  constexpr std::int64_t length = 8;
  constexpr std::int64_t width = 16;
  for (const int size : {2, 4}) {
    for (const bool divides_tokens : {false, true}) {
      CAPTURE(size);
      CAPTURE(divides_tokens);
      on_ranks(size, [&](Ranks& ranks) {
        std::vector<int> all(static_cast<std::size_t>(size));
        std::iota(all.begin(), all.end(), 0);
        TensorRanks group({.ranks = size, .divides_tokens = divides_tokens});
        group.enter(ranks.subgroup(all, "layers"));
        ColumnLinearImpl first(width, 4 * width, {.tensor = &group});
        RowLinearImpl second(4 * width, width, {.tensor = &group});
        const torch::Tensor x =
            torch::rand({n, divides_tokens ? length / size : length, width}).requires_grad_();
        const std::uint64_t before = ranks.bytes_sent();
        const torch::Tensor y = second.forward(torch::gelu(first.forward(x)));
        // An all-reduce of n * length * width values, or two halves of one.
        const auto one = static_cast<std::uint64_t>(2 * (size - 1) * n * length * width * 4 / size);
        CHECK(ranks.bytes_sent() - before == one);
        y.sum().backward();
        CHECK(ranks.bytes_sent() - before == 2 * one);
      });
    }
  }
}

}  // namespace fl::test
