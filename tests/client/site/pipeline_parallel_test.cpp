// SPDX-License-Identifier: Apache-2.0
// Ranks that have the layers of a transformer one after the other, against one process: pipelines
// of each schedule, and grids of them with the other ways of dividing.
#include "client/learn/data/random.hpp"
#include "client/learn/torch/held_parameters.hpp"
#include "client/learn/torch/put_off.hpp"
#include "client/learn/torch/torch_examples.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_task.hpp"
#include "tests/client/site/grids.hpp"
#include "tests/support/some_of.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

const std::string four_blocks = "transformer:layers=4,width=16,heads=4,context=32";
const std::string tied_tensor = "tokens.weight";

Shape staged(int pp, const char* pipeline, int dp = 1) {
  Shape shape{dp, 1};
  shape.pp = pp;
  shape.pipeline = pipeline;
  return shape;
}

/// Each schedule over 2 and 4 ranks.
std::vector<Shape> all_schedules() {
  std::vector<Shape> all;
  for (const int ranks : {2, 4})
    for (const char* const pipeline : {"gpipe", "1f1b", "zb-h1"})
      all.push_back(staged(ranks, pipeline));
  all.push_back(staged(2, "interleaved:2"));
  return all;
}

/// A step of plain SGD, whose update has the bits of the gradient.
Training one_step(const std::string& model, const Shape& shape) {
  Training training = training_of(model, shape);
  training.settings = {.local_steps = 1, .batch_size = 2, .accumulate = 4, .lr = 1, .seed = 9};
  training.weights_times = 0.25F;
  return training;
}

/// The tensors of which two vectors have other bits.
std::vector<std::string> unlike_tensors(const std::string& model, const std::vector<float>& a,
                                        const std::vector<float>& b) {
  std::vector<std::string> unlike;
  const Layout layout = builtin_layout(model).value();
  for (const Layout::Tensor& tensor : layout.tensors()) {
    const auto begin = static_cast<std::ptrdiff_t>(tensor.offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(tensor.elements);
    if (!std::equal(a.begin() + begin, a.begin() + end, b.begin() + begin))
      unlike.push_back(tensor.name);
  }
  return unlike;
}

/// The update of a plain step of one process that keeps the embedding's two gradients apart, and
/// adds them up in the end.
std::vector<float> train_apart(const Training& training) {
  const ModelSpec spec = parse_model(training.model).value();
  const Layout layout = builtin_layout(training.model).value();
  const Module module = make_module(training.model).value();
  WholeParameters held(module, layout, torch::kCPU);
  const auto weights = first_weights(*make_ranks_trainer(training, nullptr), training);
  held.load(weights);
  const torch::Tensor tokens = module->named_parameters()[tied_tensor];
  const torch::Tensor copy = tokens.detach().clone().requires_grad_();
  const LocalData data = local(training.data(), 0);
  const Examples examples(data.all, data.train, spec, torch::kCPU);
  const auto order =
      shuffled_indices(static_cast<std::uint32_t>(examples.size()),
                       mix_seeds(training.settings.seed, LearnOptions().client_seed), 0);
  torch::Tensor batch = torch::empty({8}, torch::kInt64);
  std::copy_n(order.begin(), 8, batch.mutable_data_ptr<std::int64_t>());
  for (std::int64_t pass = 0; pass < 4; ++pass) {
    const torch::Tensor part = batch.narrow(0, 2 * pass, 2);
    const auto [inputs, targets] = examples.batch(part);
    torch::Tensor values = inputs;
    const auto logits = module->end() - 1;
    for (auto layer = module->begin(); layer != logits; ++layer) values = layer->forward(values);
    const torch::Tensor loss =
        loss_of(spec, {}, torch::linear(values, copy), targets, at::Reduction::Mean, nullptr);
    (loss * (static_cast<double>(examples.predictions(part)) /
             static_cast<double>(examples.predictions(batch))))
        .backward();
  }
  tokens.mutable_grad().add_(copy.grad());
  std::vector<float> update(weights.size());
  for (std::size_t i = 0; i < update.size(); ++i)
    update[i] = weights[i] - held.gradient().const_data_ptr<float>()[i] - weights[i];
  return update;
}

}  // namespace

TEST_CASE("a pipeline makes the bits of one process that adds the tied gradients up last") {
  const std::vector<float> alone = train_alone(one_step(four_blocks, {1, 1}), 1);
  const std::vector<float> apart = train_apart(one_step(four_blocks, {1, 1}));
  CHECK(unlike_tensors(four_blocks, apart, alone) == std::vector{tied_tensor});
  CHECK(worst_distance(four_blocks, apart, alone) < 1e-6);
  for (const Shape& shape : all_schedules()) {
    for (const int zero : {0, 1, 2, 3}) {
      if (zero >= 2 && shape.pipeline == std::string("zb-h1")) continue;
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = one_step(four_blocks, shape);
      training.zero = zero;
      training.recomputes = zero == 3;
      const auto update = joined_update(train_ranks(shape.size(), training));
      CHECK(unlike_tensors(four_blocks, update, apart).empty());
    }
  }
}

TEST_CASE("pipelines train as one process does, with the same bits for each ZeRO") {
  for (const Shape& shape : some_of(all_schedules())) {
    CAPTURE(shape.name());
    Training training = training_of(four_blocks, shape);
    training.settings.accumulate = 3;   // Interleaved stages need an even number.
    training.settings.local_steps = 7;  // Over the end of an epoch, where a step has less.
    const auto ranks = train_ranks(shape.size(), training);
    const auto wanted = joined_update(ranks);
    CHECK(distance(training, wanted, train_alone(training, 1)) < 1e-6);
    for (const Trained& rank : ranks) CHECK(rank.report.loss == ranks[0].report.loss);
    training.zero = 1;
    CHECK(joined_update(train_ranks(shape.size(), training)) == wanted);
    if (shape.pipeline == std::string("zb-h1")) continue;
    training.zero = 3;
    training.recomputes = true;
    CHECK(joined_update(train_ranks(shape.size(), training)) == wanted);
  }
}

TEST_CASE("grids with pipelines make the gradient and the training of one process") {
  std::vector<Shape> shapes;
  for (const char* const pipeline : {"1f1b", "zb-h1"}) {
    shapes.push_back(staged(2, pipeline, 2));
    for (const bool divides_tokens : {false, true}) {
      Shape shape = staged(2, pipeline);
      shape.tp = 2;
      shape.divides_tokens = divides_tokens;
      shapes.push_back(shape);
    }
    Shape shape = staged(2, pipeline);
    shape.cp = 2;
    shapes.push_back(shape);
  }
  Shape all = staged(2, "interleaved:2", 2);
  all.tp = 2;
  all.cp = 2;
  shapes.push_back(all);
  const std::vector<float> wanted = gradient_alone(four_blocks);
  for (const Shape& shape : some_of(shapes)) {
    for (const int zero : {0, 3}) {
      if (zero == 3 && shape.pipeline == std::string("zb-h1")) continue;
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(four_blocks, shape);
      training.zero = zero;
      CHECK(worst_distance(four_blocks, joined(shape.size(), training, note_gradient), wanted) <
            2e-6);
      training.settings.accumulate = 2;
      training.settings.clip_norm = 0.5;
      training.settings.momentum = 0;
      CHECK(distance_from_alone(shape.size(), training) < 1e-6);
    }
  }
}

TEST_CASE("experts in a pipeline get the gradient of one process") {
  for (const char* const pipeline : {"1f1b", "zb-h1"}) {
    for (const bool recomputes : {false, true}) {
      CAPTURE(pipeline);
      CAPTURE(recomputes);
      Training training = one_step(mixture, staged(2, pipeline));
      training.recomputes = recomputes;
      const auto update = joined_update(train_ranks(2, training));
      const auto alone = train_alone(one_step(mixture, {1, 1}), 1);
      CHECK(unlike_tensors(mixture, update, alone) == std::vector{tied_tensor});
      CHECK(worst_distance(mixture, update, alone) < 1e-6);
    }
  }
}

TEST_CASE("mixed precision of a pipeline has the bits of one process") {
  for (const char* const pipeline : {"1f1b", "zb-h1"}) {
    for (const std::string& precision : std::vector<std::string>{"bf16", "fp16", "adaptive:fp16"}) {
      CAPTURE(pipeline);
      CAPTURE(precision);
      Training training = one_step(dense, staged(2, pipeline));
      training.precision = precision;
      const auto update = joined_update(train_ranks(2, training));
      training.stages = {};
      const auto alone = train_alone(training, 1);
      CHECK(unlike_tensors(dense, update, alone) == std::vector{tied_tensor});
      CHECK(worst_distance(dense, update, alone) < 1e-2);
    }
  }
}

TEST_CASE("pipelines evaluate as one process does") {
  for (const std::string& model : {dense, mixture}) {
    const EvalReport wanted = evaluation_alone(model);
    for (const Shape& shape : {staged(2, "1f1b"), staged(2, "gpipe", 2)}) {
      CAPTURE(model);
      CAPTURE(shape.name());
      for (const EvalReport& report : evaluations(model, shape)) CHECK(are_alike(report, wanted));
    }
  }
  for (const EvalReport& report : evaluations(four_blocks, staged(2, "interleaved:2")))
    CHECK(are_alike(report, evaluation_alone(four_blocks)));
}

TEST_CASE("a pipeline goes on with the moments of another one, and of none") {
  const TemporaryFolder folder;
  const auto train = [&](const Shape& shape, std::uint32_t round) {
    Training training = training_of(four_blocks, shape);
    training.state = folder.path().string();
    training.settings.round = round;
    training.settings.accumulate = 2;
    return joined_update(train_ranks(shape.size(), training));
  };
  static_cast<void>(train(staged(2, "1f1b"), 1));
  const auto wanted = train(staged(2, "1f1b"), 2);
  for (const Shape& shape : {staged(4, "gpipe"), staged(2, "interleaved:2"), Shape{1, 1}}) {
    CAPTURE(shape.name());
    CHECK(distance(training_of(four_blocks, shape), train(shape, 2), wanted) < 1e-6);
  }
}

TEST_CASE("each element of a model is written by one rank of a grid, which has read it") {
  std::vector<Shape> shapes{staged(2, "1f1b"), staged(2, "interleaved:2", 2)};
  shapes.push_back(staged(2, "1f1b"));
  shapes.back().tp = 2;
  for (const Shape& shape : shapes) {
    for (const int zero : {0, 1, 3}) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(four_blocks, shape);
      training.zero = zero;
      for (const bool does : write_each_once(shape, training)) CHECK(does);
    }
  }
}

TEST_CASE("a pipeline sends the values between stages and their gradients, and notes its waits") {
  for (const char* const pipeline : {"gpipe", "1f1b", "zb-h1", "interleaved:2"}) {
    CAPTURE(pipeline);
    const Training training = one_step(four_blocks, staged(2, pipeline));
    const auto ranks = train_ranks(2, training);
    const std::uint64_t one = 2 * 32 * 16 * sizeof(float);  // Examples, tokens, width.
    const std::uint64_t crossings = training.stages.chunks == 1 ? 1 : 3;  // Those between stages.
    std::uint64_t sent = 0;
    for (const Trained& rank : ranks) {
      bool has_waited = false;
      for (const TraceSpan& span : rank.spans) {
        if (span.name == "send") sent += span.bytes;
        has_waited = has_waited || span.name == "wait for a stage";
      }
      CHECK(has_waited);
      CHECK(rank.times.exposed > 0);
    }
    CHECK(sent == 2 * 4 * crossings * one);
  }
}

TEST_CASE("a dense layer that puts its weights' gradient off has the bits of libtorch's") {
  PutOff put_off;
  for (const bool is_on : {false, true}) {
    for (const bool has_bias : {false, true}) {
      CAPTURE(is_on);
      CAPTURE(has_bias);
      const auto make = [] { return torch::randn({3, 5, 8}).requires_grad_(); };
      const torch::Tensor x = make();
      const torch::Tensor weight = torch::randn({6, 8}).requires_grad_();
      const torch::Tensor bias = torch::randn({6}).requires_grad_();
      const torch::Tensor gradient = torch::randn({3, 5, 6});
      const auto used = has_bias ? bias : torch::Tensor();
      const torch::Tensor wanted = dense_layer(nullptr, x, weight, used);
      wanted.backward(gradient);
      const torch::Tensor of_x = x.grad().clone();
      torch::Tensor of_weight = weight.grad().clone();
      x.mutable_grad().zero_();
      weight.mutable_grad().fill_(1);  // That of the microbatches before.
      of_weight.add_(1);
      if (is_on) put_off.begin();
      const torch::Tensor made = dense_layer(&put_off, x, weight, used);
      CHECK(made.equal(wanted));
      made.backward(gradient);
      CHECK(x.grad().equal(of_x));
      CHECK(weight.grad().equal(of_weight) == !is_on);
      const PutOff::Work work = put_off.take();
      CHECK(work.size() == (is_on ? 1U : 0U));
      for (const auto& later : work) later();
      CHECK(weight.grad().equal(of_weight));
    }
  }
}

TEST_CASE("a rank whose place in a pipeline changes trains as one that has had it from the start") {
  for (const int zero : {0, 1, 3}) {
    CAPTURE(zero);
    Training training = training_of(four_blocks, staged(2, "1f1b"));
    training.zero = zero;
    const auto wanted = joined_update(train_ranks(2, training));
    std::vector<Trained> all(2);
    on_ranks(2, [&](Ranks& ranks) {
      const auto together = enter_parallel(ranks, training);
      const auto trainer = make_ranks_trainer(training, together.get());
      const auto weights = first_weights(*trainer, training);
      std::vector<float> update(weights.size());
      CHECK(trainer->train(weights, training.settings, {}, update, {}).has_value());
      together->leave();
      MeasuredChoices choices;
      CHECK(
          together
              ->enter_group(ranks.subgroup({1, 0}, "turned"), {.topology = "alltoall"}, 0, choices)
              .has_value());
      std::vector<float>& again = all[static_cast<std::size_t>(ranks.rank())].update;
      again.resize(weights.size());
      CHECK(trainer->train(weights, training.settings, {}, again, {}).has_value());
    });
    CHECK(joined_update(all) == wanted);
  }
}

TEST_CASE("what a pass that ended early has put off is forgotten") {
  PutOff put_off;
  int done = 0;
  put_off.begin();
  put_off.add([&done] { done += 10; });  // A rank is lost: nobody takes it.
  put_off.begin();
  put_off.add([&done] { ++done; });
  const PutOff::Work work = put_off.take();
  CHECK(work.size() == 1);
  for (const auto& later : work) later();
  CHECK(done == 1);
}

}  // namespace fl::test
