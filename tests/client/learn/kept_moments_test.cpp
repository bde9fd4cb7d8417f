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
  const std::vector<Piece> two{{0, 2, 0}};
  const auto before = [&](const char* run, std::uint32_t round) {
    return kept.before(run, round, two, 2).value();
  };
  CHECK(before("abc", 1).first.empty());
  const std::uint64_t many = (5ULL << 24) + 7;
  REQUIRE(kept.keep("old", 9, {{9, 9}, {}, 1}, two).has_value());
  REQUIRE(kept.keep("abc", 1, {{1, 2}, {3, 4}, many}, two).has_value());
  REQUIRE(kept.keep("abc", 3, {{5, 6}, {}, 8}, two).has_value());
  const auto again = before("abc", 3);  // Round 3 is trained again.
  CHECK(again.first == std::vector<float>{1, 2});
  CHECK(again.second == std::vector<float>{3, 4});
  CHECK(again.steps == many);
  CHECK(before("abc", 4).first == std::vector<float>{5, 6});
  CHECK(before("abc", 4).second.empty());
  CHECK(before("old", 10).first.empty());
  REQUIRE(kept.keep("abc", 4, {{7, 8}, {}, 9}, two).has_value());
  CHECK(files.list("/state")->size() == 2);
  CHECK(before("abc", 3).first.empty());
}

TEST_CASE("parts of an optimizer's moments are found by any other division of the parameters") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  // Ten parameters in two layers, [0, 6) and [6, 10), each divided over two ranks.
  const std::vector<std::vector<Piece>> halves{{{0, 3, 0}, {6, 2, 3}}, {{3, 3, 0}, {8, 2, 3}}};
  const auto keep = [&](std::int64_t rank, std::int64_t ranks, std::uint32_t round,
                        const Moments& moments, const std::vector<Piece>& pieces) {
    REQUIRE(KeptMoments(files, "/state", KeptMoments::Part{rank, ranks})
                .keep("abc", round, moments, pieces)
                .has_value());
  };
  keep(0, 2, 1, {{0, 1, 2, 6, 7}, {10, 11, 12, 16, 17}, 5}, halves[0]);
  keep(1, 2, 1, {{3, 4, 5, 8, 9}, {13, 14, 15, 18, 19}, 5}, halves[1]);
  const auto part = [&](std::int64_t rank, std::int64_t ranks, const std::vector<Piece>& pieces,
                        std::int64_t elements) {
    return KeptMoments(files, "/state", KeptMoments::Part{rank, ranks})
        .before("abc", 2, pieces, elements)
        .value();
  };
  CHECK(part(1, 2, halves[1], 5).second == std::vector<float>{13, 14, 15, 18, 19});
  // A rank of three, with an element of filling.
  const Moments third = part(1, 3, {{2, 2, 0}, {8, 2, 3}}, 5);
  CHECK(third.first == std::vector<float>{2, 3, 0, 8, 9});
  CHECK(third.second == std::vector<float>{12, 13, 0, 18, 19});
  CHECK(third.steps == 5);
  // One process with all.
  KeptMoments whole(files, "/state");
  CHECK(whole.before("abc", 2, {{0, 10, 0}}, 10)->first ==
        std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  // And a division that finds what one process has kept.
  REQUIRE(whole.keep("abc", 2, {{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, {}, 7}, {{0, 10, 0}}).has_value());
  const auto later =
      KeptMoments(files, "/state", KeptMoments::Part{0, 2}).before("abc", 3, halves[0], 5).value();
  CHECK(later.first == std::vector<float>{9, 8, 7, 3, 2});
  CHECK(later.steps == 7);
  // Fewer ranks: the first one removes the others' files, which are of another division.
  keep(0, 1, 2, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {}, 9}, {{0, 10, 0}});
  CHECK(files.list("/state")->size() == 3);  // Rounds 1 and 2 of the first part; the whole.
  // A rank whose part is in no file begins anew.
  CHECK(part(0, 2, {{0, 3, 0}, {9, 2, 3}}, 5).first.empty());
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
