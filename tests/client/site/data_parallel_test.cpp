// SPDX-License-Identifier: Apache-2.0
// Steps that ranks take together: how they show that they go on.
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <atomic>
#include <string>

namespace fl::test {
namespace {

std::unique_ptr<GradientHook> plain_hook() {
  return std::move(parse_hook("allreduce").value().hook);
}

}  // namespace

TEST_CASE("batches of an evaluation or a gradient show that the rank goes on") {
  std::atomic<int> advanced = 0;
  DataParallel together([&advanced] { ++advanced; });
  const LearnOptions options = {.model = "mlp", .data = "", .device = "cpu", .threads = 1};
  const auto trainer =
      make_torch_trainer(options, with_holdout(made_up_images(1001, 1), made_up_images(501, 2)),
                         &together)
          .value();
  const auto weights = trainer->initial_weights(1).value();
  CHECK(trainer->evaluate(weights, {})->examples == 501);
  CHECK(advanced == 2);
  std::vector<float> gradient(weights.size());
  CHECK(trainer->gradient(weights, {}, gradient, {}).has_value());
  CHECK(advanced == 2 + 3);
  on_ranks(1, [&](Ranks& ranks) {
    together.enter(ranks.subgroup({0}, "steps"), plain_hook(), 4 << 20);
    const TrainSettings settings = {.local_steps = 4, .batch_size = 4, .lr = 0.1};
    std::vector<float> update(weights.size());
    CHECK(trainer->train(weights, settings, {}, update, {}).has_value());
    together.leave();
  });
  CHECK(advanced >= 2 + 3 + 4);
}

}  // namespace fl::test
