// SPDX-License-Identifier: Apache-2.0
// What a rank that holds a part of a model takes of memory, as the kernel counts it: each rank is a
// process.
#include "tests/client/site/measured_training.hpp"  // libtorch before doctest: both have CHECK.

#include "client/site/plan/rank_load.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

constexpr float layer_megabytes = 16.8F;  // The largest unit: 2,048 x 2,048 weights.
constexpr float other_megabytes = 32;     // What libtorch takes with the first passes, and heaps.

/// A model of so many such layers, between smaller ones.
struct Model {
  int layers;
  [[nodiscard]] std::string spec() const {
    std::string text = "mlp:784-2048";
    for (int layer = 0; layer < layers; ++layer) text += "-2048";
    return text + "-10";
  }
  [[nodiscard]] float megabytes() const {
    return 6.5F + layer_megabytes * static_cast<float>(layers);
  }
};

Training training_of(const Model& model, int zero) {
  Training training;
  training.model = model.spec();
  training.zero = zero;
  training.recomputes = true;
  training.settings = {.local_steps = 2, .batch_size = 4, .lr = 0.05, .seed = 9};
  return training;
}

}  // namespace

TEST_CASE("a rank with a part of a model takes memory for that part and a few layers") {
  const Model model{.layers = 2};
  const float part = model.megabytes() / 4;  // In fp32; there are weights, gradient and start.
  for (const RankMemory& rank : measure_training(4, training_of(model, 3))) {
    CAPTURE(rank.making);
    CAPTURE(rank.after_forward);
    CAPTURE(rank.most);
    CAPTURE(rank.after);
    // There are no vectors yet; a module that was made whole would take 40.
    CHECK(rank.making <= 2 * part + other_megabytes / 2);
    CHECK(rank.after_forward <= 3 * part + layer_megabytes + other_megabytes);
    CHECK(rank.most <= 4 * part + 5 * layer_megabytes + other_megabytes);
    CHECK(rank.after <= 4 * part + other_megabytes);
  }
  const RankMemory whole = measure_training(4, training_of(model, 0)).front();
  // All ranks with all of it would not hold what the lines above say.
  CHECK(whole.after_forward > 2 * model.megabytes());
}

TEST_CASE("more layers on more ranks take no more memory of each, but for their inputs") {
  const Model shallow{.layers = 2};
  const Model deep{.layers = 5};
  const RankMemory few = measure_training(2, training_of(shallow, 3)).front();
  const RankMemory many = measure_training(4, training_of(deep, 3)).front();
  // A rank's parts are 20 MB and 23 MB, and it holds four of them (weights, gradient, start and
  // sums). Three layers more would be 50 MB if they stayed.
  const float tolerance =
      4 * (deep.megabytes() / 4 - shallow.megabytes() / 2) + other_megabytes / 2;
  CAPTURE(few.most);
  CAPTURE(many.most);
  CHECK(many.most <= few.most + tolerance);
  CHECK(many.after_forward <= few.after_forward + tolerance);
}

TEST_CASE("a rank takes and sends what site recommend says") {
  const Model model{.layers = 2};
  for (const int zero : {0, 1, 2, 3}) {
    CAPTURE(zero);
    Training training = training_of(model, zero);
    training.settings.optimizer.kind = LocalOptimizer::Kind::adamw;
    training.settings.lr = 1e-4;
    const RankLoad load = rank_load(model.megabytes() / 4, layer_megabytes / 4,
                                    {.zero = zero, .ranks = 4, .recomputes = true, .on_cpu = true});
    for (const RankMemory& rank : measure_training(4, training)) {
      CAPTURE(rank.most);
      CAPTURE(rank.after);
      CAPTURE(load.on_gpu);
      // Where freed memory is kept for the next step, as it is for whole models, heaps grow.
      const double heaps = zero < 1 ? 0.5 : 0.1;
      CHECK(rank.most <= (1 + heaps) * load.on_gpu + other_megabytes);
      CHECK(rank.most >= 0.7 * load.on_gpu);
      CHECK(std::abs(rank.sent_megabytes / rank.steps / load.sent - 1) < 0.02);
    }
  }
}

TEST_CASE("a context of four ranks takes of each what a quarter of it takes of one") {
  const auto training_with = [](std::uint16_t context, int cp) {
    Training training;
    training.model = fmt::format("transformer:layers=3,width=128,heads=4,context={}", context);
    training.texts.ranks = cp;
    training.settings = {.local_steps = 1, .batch_size = 8, .lr = 0.05, .seed = 9};
    training.data = [context] {
      const auto length = static_cast<std::uint16_t>(context + 1);
      return made_up_texts(std::vector<std::uint16_t>(8, length), context);
    };
    return training;
  };
  const RankMemory short_text = measure_training(1, training_with(512, 1)).front();
  const RankMemory long_text = measure_training(1, training_with(2048, 1)).front();
  for (const RankMemory& rank : measure_training(4, training_with(2048, 4))) {
    CAPTURE(short_text.after_forward);
    CAPTURE(long_text.after_forward);
    CAPTURE(rank.after_forward);
    // 190 to 215 MB (heaps differ from run to run) against 530 MB of one rank with all of it, and
    // 150 MB of a short text, of which 30 MB are no activations.
    CHECK(rank.after_forward <= 1.3F * short_text.after_forward + other_megabytes);
    CHECK(rank.after_forward <= 0.5F * long_text.after_forward);
  }
}

TEST_CASE("a rank of a pipeline keeps as many passes as there are ranks, or with GPipe all") {
  const auto training_by = [](const char* pipeline) {
    Training training;
    training.model = "transformer:layers=4,width=128,heads=4,context=256";
    training.stages = parse_pipeline(pipeline, 2).value();
    training.settings = {.local_steps = 1, .batch_size = 4, .accumulate = 8, .lr = 0.05, .seed = 9};
    training.data = [] { return made_up_texts(std::vector<std::uint16_t>(32, 257), 256); };
    return training;
  };
  const RankMemory all = measure_training(2, training_by("gpipe")).front();
  for (const char* const pipeline : {"1f1b", "zb-h1"}) {
    const RankMemory few = measure_training(2, training_by(pipeline)).front();
    CAPTURE(pipeline);
    CAPTURE(all.after_forward);
    CAPTURE(few.after_forward);
    // 2 of 8 passes, with what one leaves in the heap, beside weights and what libtorch takes.
    CHECK(few.after_forward <= 0.3F * all.after_forward + other_megabytes);
    CHECK(all.after_forward > 4 * other_megabytes);
  }
}

}  // namespace fl::test
