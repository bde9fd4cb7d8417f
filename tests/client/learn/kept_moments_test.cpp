// SPDX-License-Identifier: Apache-2.0
// An optimizer's moments that go on from round to round: on the disk, and in training.
#include "client/learn/torch/kept_moments.hpp"
#include "client/learn/torch/torch_models.hpp"  // libtorch before doctest: both have CHECK.
#include "client/learn/torch/torch_trainer.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {
namespace {

std::unique_ptr<Trainer> keeper(const std::string& state) {
  auto trainer = make_torch_trainer({.model = "logistic",
                                     .data = "",
                                     .device = "cpu",
                                     .threads = 1,
                                     .keep_moments = !state.empty(),
                                     .state = state},
                                    local(made_up_images(40, 1)))
                     .value();
  trainer->enter_run("abc");
  return trainer;
}

/// Trains one epoch of four batches, and moves the weights.
void train(Trainer& trainer, std::vector<float>& weights, std::uint32_t round,
           LocalOptimizer::Kind kind, std::uint32_t epochs = 1) {
  TrainSettings settings{.round = round, .local_epochs = epochs, .batch_size = 10, .lr = 0.01};
  settings.optimizer.kind = kind;
  if (kind == LocalOptimizer::Kind::sgd) settings.momentum = 0.9;
  std::vector<float> update(weights.size());
  const auto report = trainer.train(weights, settings, {}, update, {});
  INFO((report ? std::string() : report.error().message()));
  REQUIRE(report.has_value());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
}

}  // namespace

TEST_CASE("the moments of the last two rounds are kept, of this run only") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  KeptMoments kept(files, "/state");
  CHECK(kept.before("abc", 1)->first.empty());
  const std::uint64_t many = (5ULL << 24) + 7;
  REQUIRE(kept.keep("old", 9, {{9}, {}, 1}).has_value());
  REQUIRE(kept.keep("abc", 1, {{1, 2}, {3, 4}, many}).has_value());
  REQUIRE(kept.keep("abc", 3, {{5, 6}, {}, 8}).has_value());
  const auto again = kept.before("abc", 3).value();  // Round 3 is trained again.
  CHECK(again.first == std::vector<float>{1, 2});
  CHECK(again.second == std::vector<float>{3, 4});
  CHECK(again.steps == many);
  CHECK(kept.before("abc", 4)->first == std::vector<float>{5, 6});
  CHECK(kept.before("abc", 4)->second.empty());
  CHECK(kept.before("old", 10)->first.empty());
  REQUIRE(kept.keep("abc", 4, {{7}, {}, 9}).has_value());
  CHECK(files.list("/state")->size() == 2);
  CHECK(kept.before("abc", 3)->first.empty());
}

// One epoch visits the batches in its own order, so only the whole of each is compared: two rounds
// with one full batch each are two epochs of a single round.
TEST_CASE("with moments that are kept, two rounds train as one round of twice the steps") {
  for (const auto kind : {LocalOptimizer::Kind::sgd, LocalOptimizer::Kind::adam}) {
    CAPTURE(static_cast<int>(kind));
    const TemporaryFolder folder;
    const auto initial = keeper("")->initial_weights(1).value();
    const auto run = [&](Trainer& trainer, bool at_once) {
      std::vector<float> weights = initial;
      TrainSettings settings{.round = 1, .local_epochs = at_once ? 2U : 1U, .batch_size = 40};
      settings.lr = 0.01;
      settings.optimizer.kind = kind;
      if (kind == LocalOptimizer::Kind::sgd) settings.momentum = 0.9;
      for (int round = 1; round <= (at_once ? 1 : 2); ++round) {
        settings.round = static_cast<std::uint32_t>(round);
        std::vector<float> update(weights.size());
        REQUIRE(trainer.train(weights, settings, {}, update, {}).has_value());
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
      }
      return weights;
    };
    const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
      float largest = 0;
      for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
      return largest < 1e-5F;
    };
    const auto once = run(*keeper(""), true);
    CHECK(near(run(*keeper(folder.path().string()), false), once));
    CHECK_FALSE(near(run(*keeper(""), false), once));
  }
}

TEST_CASE("a round that is trained again begins with the same moments") {
  const TemporaryFolder folder;
  const auto trainer = keeper(folder.path().string());
  std::vector<float> weights = trainer->initial_weights(1).value();
  train(*trainer, weights, 1, LocalOptimizer::Kind::adam);
  std::vector<float> first = weights;
  train(*trainer, first, 2, LocalOptimizer::Kind::adam);
  std::vector<float> second = weights;
  train(*keeper(folder.path().string()), second, 2, LocalOptimizer::Kind::adam);
  CHECK(first == second);
}

TEST_CASE("methods that correct or count steps don't go with moments that are kept") {
  const TemporaryFolder folder;
  CHECK_FALSE(keeper(folder.path().string())->abilities().optimizer);
  CHECK_FALSE(keeper(folder.path().string())->abilities().correction);
  CHECK(keeper("")->abilities().optimizer);
  const auto refused = make_torch_trainer(
      {.model = "logistic", .data = "", .hogwild = 2, .keep_moments = true}, LocalData());
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().find("--hogwild") != std::string::npos);
}

}  // namespace fl::test
