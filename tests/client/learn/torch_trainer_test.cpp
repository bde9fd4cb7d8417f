// SPDX-License-Identifier: Apache-2.0
// Compares the trainer with hand-written libtorch loops on made-up images, and trains on
// Fashion-MNIST.
#include "client/learn/torch/torch_trainer.hpp"
#include "client/learn/data/random.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/support/some_of.hpp"

#include <doctest/doctest.h>
#include <torch/cuda.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace fl::test;

constexpr std::uint32_t side = 28;

fl::Result<std::unique_ptr<fl::Trainer>> make(const std::string& model, fl::LocalData data,
                                              const std::string& device = "cpu",
                                              const std::string& precision = "fp32") {
  const fl::LearnOptions options = {
      .model = model, .data = "", .device = device, .precision = precision, .threads = 1};
  return fl::make_torch_trainer(options, std::move(data));
}

double accuracy_of(const fl::EvalReport& report) { return report.metrics.at(0).value; }

std::unique_ptr<fl::Trainer> trainer_of(const std::string& model, std::uint32_t examples) {
  return make(model, with_holdout(made_up_images(examples, 1), made_up_images(30, 2))).value();
}

std::vector<float> train(fl::Trainer& trainer, std::span<const float> global,
                         const fl::TrainSettings& settings, std::stop_token stop = {}) {
  std::vector<float> update(global.size());
  const auto report = trainer.train(global, settings, {}, update, stop);
  INFO((report ? std::string() : report.error().message()));
  REQUIRE(report.has_value());
  CHECK(report->examples == trainer.train_examples());
  return update;
}

void expect_error(fl::Trainer& trainer, std::span<const float> global,
                  const fl::TrainSettings& settings, fl::Errc code, std::string_view words,
                  std::stop_token stop = {}) {
  std::vector<float> update(global.size());
  const auto report = trainer.train(global, settings, {}, update, stop);
  REQUIRE(report.has_error());
  CAPTURE(report.error().message());
  CHECK(report.error().code() == code);
  CHECK(report.error().message().find(words) != std::string::npos);
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  }
  return largest;
}

// LeNet written by hand, with ReLU before pooling. It shares only the initial weights and the order
// of the examples with the trainer.
struct PlainLenet : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 6, 5))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(6, 16, 5))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(256, 120))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(120, 84))};
  torch::nn::Linear fc3{register_module("fc3", torch::nn::Linear(84, 10))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2).view({-1, 256});
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }

  void load(std::span<const float> weights) {
    const torch::NoGradGuard no_grad;
    std::int64_t at = 0;
    const torch::Tensor flat = torch::tensor(at::ArrayRef<float>(weights.data(), weights.size()));
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
      at += parameter.numel();
    }
  }

  std::vector<float> flat() {
    std::vector<torch::Tensor> pieces;
    for (const torch::Tensor& parameter : parameters()) {
      pieces.push_back(parameter.detach().flatten());
    }
    const torch::Tensor all = torch::cat(pieces);
    return {all.data_ptr<float>(), all.data_ptr<float>() + all.numel()};
  }
};

/// PyTorch's optimizer of the same name.
std::unique_ptr<torch::optim::Optimizer> plain_optimizer(const fl::TrainSettings& s,
                                                         std::vector<torch::Tensor> parameters) {
  const fl::LocalOptimizer& o = s.optimizer;
  using Kind = fl::LocalOptimizer::Kind;
  if (o.kind == Kind::adam) {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(s.lr)
                                                    .betas({o.beta1, o.beta2})
                                                    .eps(o.epsilon)
                                                    .weight_decay(s.weight_decay));
  }
  if (o.kind == Kind::adamw) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(s.lr)
                                                     .betas({o.beta1, o.beta2})
                                                     .eps(o.epsilon)
                                                     .weight_decay(s.weight_decay));
  }
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(s.lr)
                                                 .momentum(s.momentum)
                                                 .weight_decay(s.weight_decay)
                                                 .nesterov(o.kind == Kind::nesterov));
}

/// Takes the optimizer's steps on loss_of(images, labels), over the batches of all epochs.
void take_plain_steps(
    const fl::DataSet& set, const fl::TrainSettings& s, torch::optim::Optimizer& optimizer,
    const std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>& loss_of) {
  const std::int64_t n = set.size();
  for (std::uint64_t epoch = 0; epoch < s.local_epochs; ++epoch) {
    const auto order = fl::shuffled_indices(set.size(), fl::mix_seeds(s.seed, 0), epoch);
    for (std::int64_t at = 0; at < n; at += s.batch_size) {
      const auto count = std::min<std::int64_t>(s.batch_size, n - at);
      const fl::DataSet batch = set.select(std::span(order).subspan(at, count));
      torch::Tensor x = torch::empty({count, 1, side, side});
      const auto pixels = fl::test::pixels_of(batch);
      for (std::size_t i = 0; i < pixels.size(); ++i)
        x.data_ptr<float>()[i] = static_cast<float>(pixels[i]) / 255.0f;
      torch::Tensor y = torch::empty({count}, torch::kInt64);
      std::ranges::copy(batch.labels, y.data_ptr<std::int64_t>());
      const torch::Tensor loss = loss_of(x, y);
      optimizer.zero_grad();
      loss.backward();
      if (s.clip_norm > 0)
        torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[0].params(), s.clip_norm);
      optimizer.step();
    }
  }
}

/// The update of LeNet. `correction` is added to each element of every gradient.
std::vector<float> plain_update(const fl::DataSet& set, std::span<const float> global,
                                const fl::TrainSettings& s, double correction = 0) {
  PlainLenet model;
  model.load(global);
  std::vector<torch::Tensor> start;
  for (const torch::Tensor& parameter : model.parameters()) {
    start.push_back(parameter.detach().clone());
  }
  const auto optimizer = plain_optimizer(s, model.parameters());
  take_plain_steps(set, s, *optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
    torch::Tensor loss = torch::nn::functional::cross_entropy(model.forward(x), y);
    for (std::size_t p = 0; p < start.size() && s.proximal_mu > 0; ++p) {
      loss = loss + s.proximal_mu / 2 * (model.parameters()[p] - start[p]).square().sum();
    }
    for (const torch::Tensor& parameter : model.parameters()) {
      if (correction != 0) loss = loss + correction * parameter.sum();
    }
    return loss;
  });
  std::vector<float> update = model.flat();
  for (std::size_t i = 0; i < update.size(); ++i) update[i] -= global[i];
  return update;
}

/// The update of resnet8, trained in train() mode. Its statistics come last.
std::vector<float> plain_resnet_update(const fl::DataSet& set, std::span<const float> global,
                                       const fl::TrainSettings& s) {
  const auto module = fl::make_module("resnet8").value();
  std::vector<torch::Tensor> tensors = module->parameters();
  for (const auto& buffer : module->named_buffers()) {
    if (buffer.key().find("running") != std::string::npos) tensors.push_back(buffer.value());
  }
  const auto start = torch::tensor(at::ArrayRef<float>(global.data(), global.size()));
  std::int64_t at = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.set_data(start.narrow(0, at, tensor.numel()).view(tensor.sizes()).clone());
    at += tensor.numel();
  }
  REQUIRE(at == start.numel());
  const auto optimizer = plain_optimizer(s, module->parameters());
  take_plain_steps(set, s, *optimizer, [&](const torch::Tensor& x, const torch::Tensor& y) {
    return torch::nn::functional::cross_entropy(module->forward(x), y);
  });
  std::vector<torch::Tensor> pieces;
  for (const torch::Tensor& tensor : tensors) pieces.push_back(tensor.detach().flatten());
  const torch::Tensor update = torch::cat(pieces).sub_(start);
  return {update.data_ptr<float>(), update.data_ptr<float>() + update.numel()};
}

}  // namespace

TEST_CASE("every module has the layout of the model table") {
  for (const char* const model :
       {"lenet", "cnn", "resnet8", "resnet20", "mlp", "logistic", "mlp:784-7-10", "logistic:784-10",
        "linear:784-10", "cnn:1x28x28-10", "resnet14:1x28x28-10,loss=mae"}) {
    CAPTURE(std::string(model));
    const auto module = fl::make_module(model);
    INFO((module ? std::string() : module.error().message()));
    REQUIRE(module.has_value());
    const torch::Tensor outputs = (*module)->forward(torch::zeros({3, 1, side, side}));
    CHECK(outputs.sizes() == at::IntArrayRef{3, 10});
  }
  const auto text = fl::make_module("transformer:layers=2,width=8,heads=2,context=5").value();
  const torch::Tensor bytes = torch::tensor({{72, 101, 108, 108, 111}}, torch::kInt64);
  CHECK(text->forward(bytes).sizes() == at::IntArrayRef{1, 5, 256});
  CHECK(fl::make_module("resnet").has_error());
}

// Compares with PyTorch's optimizer on a module written by hand, from the same weights and with the
// same batches: each term alone, and all together. 100 examples in batches of 32 leave a short last
// batch.
TEST_CASE("updates equal those of torch::optim::SGD") {
  const fl::DataSet images = made_up_images(100, 1);
  const auto trainer = trainer_of("lenet", 100);
  const auto global = trainer->initial_weights(3).value();
  const fl::TrainSettings plain = {.local_epochs = 3, .batch_size = 32, .lr = 0.05, .seed = 9};
  std::vector<fl::TrainSettings> cases(7, plain);
  cases[5].clip_norm = 0.5;  // Gradients are longer in most steps.
  cases[6].clip_norm = 0.5;
  cases[6].momentum = 0.9;
  cases[6].weight_decay = 0.01;
  cases[1].momentum = 0.9;
  cases[2].weight_decay = 0.01;
  cases[3].proximal_mu = 0.5;
  cases[4].momentum = 0.9;
  cases[4].weight_decay = 0.01;
  cases[4].proximal_mu = 0.5;
  for (const fl::TrainSettings& settings : cases) {
    const auto update = train(*trainer, global, settings);
    CHECK(norm(update) > 0.01);
    CHECK(largest_difference(update, plain_update(images, global, settings)) < 1e-6);
  }
}

TEST_CASE(
    "with BatchNorm, parameters equal those of torch::optim, statistics those of the module") {
  const fl::DataSet images = made_up_images(60, 1);
  const auto trainer = trainer_of("resnet8", 60);
  const auto global = trainer->initial_weights(3).value();
  fl::TrainSettings settings = {.local_epochs = 2, .batch_size = 16, .lr = 0.05, .seed = 9};
  settings.momentum = 0.9;
  settings.weight_decay = 0.01;
  const auto update = train(*trainer, global, settings);
  const auto expected = plain_resnet_update(images, global, settings);
  CHECK(largest_difference(update, expected) < 2e-4);
  constexpr std::size_t statistics = 480;
  const auto last = std::span(update).last(statistics);
  CHECK(norm(last) > 1);
  CHECK(largest_difference(last, std::span(expected).last(statistics)) < 2e-4);

  // A correction does not change statistics. Evaluation uses the statistics, but does not change
  // them.
  std::vector<float> correction(global.size());
  std::ranges::fill(std::span(correction).last(statistics), 1e6F);
  std::vector<float> corrected(global.size());
  REQUIRE(trainer->train(global, settings, correction, corrected, {}).has_value());
  CHECK(corrected == update);
  std::vector<float> trained = global;
  for (std::size_t i = 0; i < trained.size(); ++i) trained[i] += update[i];
  const auto report = trainer->evaluate(trained, {}).value();
  CHECK(trainer->evaluate(trained, {}).value().loss == report.loss);
  std::vector<float> without = trained;
  std::copy(global.end() - statistics, global.end(), without.end() - statistics);
  CHECK(trainer->evaluate(without, {}).value().loss != report.loss);
  // A negative variance, which rounding and stale updates can cause, counts as 0.
  for (float& value : std::span(without).last(statistics)) value = -1e-3F;
  CHECK(std::isfinite(trainer->evaluate(without, {}).value().loss));

  std::vector<float> gradient(global.size(), 7.0F);
  REQUIRE(trainer->gradient(global, settings, gradient, {}).has_value());
  CHECK(norm(std::span(gradient).first(gradient.size() - statistics)) > 0.1);
  CHECK(norm(std::span(gradient).last(statistics)) == 0);
  CHECK(train(*trainer, global, settings) == update);
}

TEST_CASE("updates equal those of torch::optim's other optimizers") {
  const fl::DataSet images = made_up_images(100, 1);
  const auto trainer = trainer_of("lenet", 100);
  const auto global = trainer->initial_weights(3).value();
  fl::TrainSettings settings = {.local_epochs = 3,
                                .batch_size = 32,
                                .lr = 0.003,
                                .momentum = 0.9,
                                .weight_decay = 0.1,
                                .seed = 9};
  // A small epsilon would make the rounding of gradients that are nearly 0 as large as a step.
  for (const char* const name :
       {"nesterov", "adam:beta1=0.8,epsilon=1e-6", "adamw:beta2=0.99,epsilon=1e-6"}) {
    CAPTURE(name);
    settings.optimizer = fl::parse_optimizer(name).value();
    const auto update = train(*trainer, global, settings);
    CHECK(norm(update) > 0.01);
    CHECK(largest_difference(update, plain_update(images, global, settings)) < 1e-5);
  }
}

TEST_CASE("the correction is added to every gradient, and gradient() is that of all examples") {
  const fl::DataSet images = made_up_images(700, 1);  // More than one batch of gradient().
  const auto trainer = trainer_of("lenet", 700);
  const auto global = trainer->initial_weights(3).value();
  fl::TrainSettings settings = {.local_epochs = 1, .batch_size = 350, .lr = 0.05, .momentum = 0.9};
  std::vector<float> update(global.size());
  const std::vector<float> correction(global.size(), 0.01F);
  REQUIRE(trainer->train(global, settings, correction, update, {}).has_value());
  CHECK(largest_difference(update, plain_update(images, global, settings, 0.01)) < 1e-6);
  CHECK(largest_difference(update, plain_update(images, global, settings)) > 1e-4);

  // One step with all examples moves by lr times the gradient.
  settings = {.local_epochs = 1, .batch_size = 700, .lr = 0.5, .weight_decay = 0.1};
  std::vector<float> gradient(global.size());
  REQUIRE(trainer->gradient(global, settings, gradient, {}).has_value());
  const auto step = plain_update(images, global, settings);
  for (std::size_t i = 0; i < step.size(); ++i) gradient[i] *= -0.5F;
  CHECK(norm(step) > 0.01);
  CHECK(largest_difference(gradient, step) < 1e-6);
}

TEST_CASE("the same settings give the same bits, and another seed gives others") {
  const auto trainer = trainer_of("lenet", 100);
  const auto global = trainer->initial_weights(3).value();
  const fl::TrainSettings settings = {.momentum = 0.9, .seed = 9};
  const auto update = train(*trainer, global, settings);
  CHECK(update == train(*trainer, global, settings));
  CHECK(update == train(*trainer_of("lenet", 100), global, settings));
  CHECK(update != train(*trainer, global, {.momentum = 0.9, .seed = 10}));
}

TEST_CASE("the client's own seed changes the order of the examples") {
  const auto global = trainer_of("mlp", 100)->initial_weights(3).value();
  std::vector<std::vector<float>> updates;
  for (const std::uint64_t client_seed : {0, 1}) {
    auto trainer = fl::make_torch_trainer(
        {.model = "mlp", .data = "", .device = "cpu", .threads = 1, .client_seed = client_seed},
        to_train_on(made_up_images(100, 1)));
    updates.push_back(train(**trainer, global, {.batch_size = 10}));
  }
  CHECK(updates[0] != updates[1]);
}

TEST_CASE("local_steps counts batches, over several epochs") {
  const auto trainer = trainer_of("logistic", 100);
  const auto global = trainer->initial_weights(3).value();
  std::vector<float> update(global.size());
  // Four batches an epoch: eight steps are two epochs.
  const fl::TrainSettings by_steps = {.local_steps = 8, .batch_size = 32, .seed = 2};
  CHECK(trainer->train(global, by_steps, {}, update, {})->steps == 8);
  CHECK(update == train(*trainer, global, {.local_epochs = 2, .batch_size = 32, .seed = 2}));
  CHECK(trainer->train(global, {.local_epochs = 3, .batch_size = 1000}, {}, update, {})->steps ==
        3);
}

// With lr * mu = 1 each step undoes those before it. So the weights move as far as in one step,
// while free training adds up 100 steps.
TEST_CASE("a large FedProx mu keeps the weights near the global ones") {
  const auto trainer = trainer_of("lenet", 300);
  const auto global = trainer->initial_weights(3).value();
  const fl::TrainSettings free = {.local_epochs = 10, .batch_size = 32, .lr = 0.05};
  fl::TrainSettings bound = free;
  bound.proximal_mu = 20;
  CHECK(norm(train(*trainer, global, bound)) < 0.1 * norm(train(*trainer, global, free)));
}

TEST_CASE("a stop request ends training and evaluation") {
  const auto trainer = trainer_of("lenet", 100);
  const auto global = trainer->initial_weights(3).value();
  const fl::TrainSettings settings = {.round = 7, .local_epochs = 1'000'000};
  std::stop_source stop;
  {
    // The stop is requested while training runs, far from its end.
    std::jthread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      stop.request_stop();
    });
    expect_error(*trainer, global, settings, fl::Errc::cancelled, "round 7, step ",
                 stop.get_token());
  }
  expect_error(*trainer, global, settings, fl::Errc::cancelled, "round 7, step 1 ",
               stop.get_token());
  const auto report = trainer->evaluate(global, stop.get_token());
  REQUIRE(report.has_error());
  CHECK(report.error().code() == fl::Errc::cancelled);
  // The stopped training does not affect the next round.
  CHECK(train(*trainer, global, {.seed = 4}) ==
        train(*trainer_of("lenet", 100), global, {.seed = 4}));
}

// N mini-batches of B give the same step as one batch of N * B. With 100 examples, an epoch's last
// batch is shorter, and the last mini-batch in it too.
TEST_CASE("accumulated mini-batches make the step of one large batch") {
  const auto trainer = trainer_of("lenet", 100);
  const auto global = trainer->initial_weights(3).value();
  fl::TrainSettings settings = {.local_epochs = 3, .batch_size = 32, .lr = 0.05, .momentum = 0.9};
  std::vector<float> update(global.size());
  const auto whole = trainer->train(global, settings, {}, update, {});
  settings.batch_size = 8;
  settings.accumulate = 4;
  std::vector<float> in_parts(global.size());
  const auto parts = trainer->train(global, settings, {}, in_parts, {});
  REQUIRE(parts.has_value());
  CHECK(parts->steps == 12);
  CHECK(parts->loss == doctest::Approx(whole->loss));
  CHECK(norm(update) > 0.01);
  CHECK(largest_difference(update, in_parts) < 1e-6);
  settings.batch_size = 100;
  settings.accumulate = 4'000'000'000;  // A step does not go beyond an epoch.
  CHECK(trainer->train(global, settings, {}, update, {})->steps == 3);
}

// Training for as many steps as were reported gives the same update. A time too short for one step
// gives one step.
TEST_CASE("with local_seconds it trains as many steps as fit") {
  const auto trainer = trainer_of("mlp", 100);
  const auto global = trainer->initial_weights(3).value();
  fl::TrainSettings settings = {.local_epochs = 0, .local_seconds = 0.2, .batch_size = 8};
  std::vector<float> update(global.size());
  const auto report = trainer->train(global, settings, {}, update, {});
  REQUIRE(report.has_value());
  CHECK(report->steps > 1);
  CHECK(report->seconds >= 0.2);
  settings.local_steps = static_cast<std::uint32_t>(report->steps);
  settings.local_seconds = 0;
  CHECK(train(*trainer, global, settings) == update);

  settings = {.local_seconds = 1e-9};
  CHECK(trainer->train(global, settings, {}, update, {})->steps == 1);
  settings = {.local_steps = 3, .local_seconds = 1000};
  CHECK(trainer->train(global, settings, {}, update, {})->steps == 3);
}

TEST_CASE("lower precision changes an update by no more than its rounding") {
  const fl::DataSet images = made_up_images(100, 1);
  const fl::TrainSettings settings = {.local_epochs = 3, .batch_size = 32, .lr = 0.05, .seed = 9};
  const auto whole = trainer_of("lenet", 100);
  const auto global = whole->initial_weights(3).value();
  const auto expected = train(*whole, global, settings);
  for (const std::string precision : {"bf16", "fp16"}) {
    const double epsilon = precision == "bf16" ? 0x1p-8 : 0x1p-11;
    CAPTURE(precision);
    const auto trainer = make("lenet", to_train_on(images), "cpu", precision).value();
    const auto update = train(*trainer, global, settings);
    CHECK(update != expected);
    std::vector<float> off(update.size());
    std::ranges::transform(update, expected, off.begin(), std::minus());
    CHECK(norm(off) < 16 * epsilon * norm(expected));
    CHECK(train(*trainer, global, settings) == update);
  }
}

// A step whose gradient overflows is not taken, and the scale falls until a gradient fits. The test
// uses batches of one example and weights so large that gradients overflow fp16 at the first scale.
// The one step taken must be that of a later example, as fp32 takes it.
TEST_CASE("fp16 skips steps that overflow") {
  const fl::DataSet images = made_up_images(10, 1);
  const auto trainer = make("mlp", to_train_on(images), "cpu", "fp16").value();
  auto global = trainer->initial_weights(3).value();
  for (float& weight : global) weight *= 6;
  const fl::TrainSettings settings = {.local_steps = 1, .batch_size = 1, .seed = 9};
  const auto update = train(*trainer, global, settings);
  const auto order = fl::shuffled_indices(10, fl::mix_seeds(9, 0), 0);
  std::vector<std::size_t> alike;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto alone =
        make("mlp", to_train_on(images.select(std::span(order).subspan(i, 1)))).value();
    auto off = train(*alone, global, settings);
    const double size = norm(off);
    std::ranges::transform(update, off, off.begin(), std::minus());
    if (norm(off) < 0.01 * size) alike.push_back(i);
  }
  REQUIRE(alike.size() == 1);
  CHECK(alike[0] > 0);
}

// With full batches and a small learning rate, all steps are nearly the same. So the threads
// together get as far as one thread with as many steps, except for lost writes.
TEST_CASE("hogwild's threads share weights and steps") {
  const fl::DataSet images = made_up_images(100, 1);
  const fl::TrainSettings settings = {.local_steps = 90, .batch_size = 100, .lr = 1e-4};
  const auto alone = trainer_of("mlp", 100);
  const auto global = alone->initial_weights(3).value();
  std::vector<float> expected(global.size());
  const auto one = alone->train(global, settings, {}, expected, {});
  const auto threads =
      fl::make_torch_trainer(
          {.model = "mlp", .data = "", .device = "cpu", .threads = 1, .hogwild = 3},
          to_train_on(images))
          .value();
  std::vector<float> update(global.size());
  const auto report = threads->train(global, settings, {}, update, {});
  REQUIRE(report.has_value());
  CHECK(report->steps == 90);
  CHECK(report->loss == doctest::Approx(one->loss).epsilon(0.01));
  std::ranges::transform(update, expected, update.begin(), std::minus());
  CHECK(norm(update) < 0.2 * norm(expected));
}

TEST_CASE("one thread's error ends all of them") {
  const auto threads =
      fl::make_torch_trainer(
          {.model = "mlp", .data = "", .device = "cpu", .threads = 1, .hogwild = 3},
          to_train_on(made_up_images(100, 1)))
          .value();
  expect_error(*threads, threads->initial_weights(3).value(),
               {.round = 5, .local_epochs = 1'000'000, .batch_size = 50, .lr = 1e38},
               fl::Errc::invalid_input, "round 5, step ");
}

TEST_CASE("errors for numbers that are not finite name round and step") {
  const auto trainer = trainer_of("mlp", 100);
  auto global = trainer->initial_weights(3).value();
  const auto invalid = fl::Errc::invalid_input;
  // The first step makes the weights far too large; the loss of the second step shows it.
  expect_error(*trainer, global, {.round = 5, .batch_size = 50, .lr = 1e38}, invalid,
               "round 5, step 2 of 2: the loss is ");
  // With only one step, no later loss shows it.
  expect_error(*trainer, global, {.round = 5, .local_steps = 1, .lr = 1e38, .weight_decay = 1e38},
               invalid, "round 5: after step 1 the update of fc1.weight[0] is ");
  global[7] = std::numeric_limits<float>::quiet_NaN();
  expect_error(*trainer, global, {.round = 6}, invalid, "round 6, step 1 of 2: the loss is nan");
  // The failed rounds do not affect the next one.
  global[7] = 0;
  CHECK(train(*trainer, global, {.seed = 4}) ==
        train(*trainer_of("mlp", 100), global, {.seed = 4}));
}

TEST_CASE("invalid settings are refused by name") {
  const auto trainer = trainer_of("logistic", 20);
  const auto global = trainer->initial_weights(3).value();
  const double nan = std::nan("");
  const auto expect = [&](const fl::TrainSettings& settings, std::string_view words) {
    expect_error(*trainer, global, settings, fl::Errc::invalid_input, words);
  };
  expect({.batch_size = 0}, "batch_size");
  expect({.accumulate = 0}, "accumulate");
  expect({.local_epochs = 0}, "local_epochs");
  expect({.local_seconds = nan}, "local_seconds");
  expect({.lr = -1}, "lr");
  expect({.lr = nan}, "lr");
  expect({.lr = 1e39}, "lr");
  expect({.momentum = 1}, "momentum");
  expect({.weight_decay = nan}, "weight_decay");
  expect({.proximal_mu = -0.1}, "proximal_mu");
}

// Logistic regression with zero weights and one large bias always predicts that class, with
// certainty. It is right for the share of that class, and for all other examples the loss is the
// bias. With all zeros, the classes are equally likely and the loss is ln 10.
TEST_CASE("evaluation reports the right loss and accuracy for a model with known answers") {
  const fl::DataSet images = made_up_images(1234, 5);  // Two full batches and a short one.
  const auto trainer = make("logistic", held_out(images)).value();
  std::vector<float> weights(trainer->layout().elements(), 0.0f);
  CHECK(trainer->evaluate(weights, {})->loss == doctest::Approx(std::log(10.0)));

  constexpr float bias = 50;
  weights[trainer->layout().tensors()[1].offset + 3] = bias;
  const double right = static_cast<double>(std::ranges::count(images.labels, 3)) / 1234;
  const auto report = trainer->evaluate(weights, {});
  CHECK(report->examples == 1234);
  CHECK(accuracy_of(*report) == doctest::Approx(right));
  CHECK(report->loss == doctest::Approx(bias * (1 - right)));
}

TEST_CASE("a trainer may have no training data or no held-out data") {
  const auto evaluator = make("logistic", held_out(made_up_images(10, 1))).value();
  const auto weights = evaluator->initial_weights(1).value();
  CHECK(evaluator->train_examples() == 0);
  CHECK(evaluator->holdout_examples() == 10);
  expect_error(*evaluator, weights, {}, fl::Errc::invalid_input, "no examples to train on");
  const auto learner = make("logistic", to_train_on(made_up_images(10, 1))).value();
  CHECK(learner->evaluate(weights, {})->examples == 0);
}

TEST_CASE("making a trainer from wrong data or options is an error that names them") {
  const auto expect = [](const auto& trainer, std::string_view words) {
    REQUIRE(trainer.has_error());
    CAPTURE(trainer.error().message());
    CHECK(trainer.error().code() == fl::Errc::invalid_input);
    CHECK(trainer.error().message().find(words) != std::string::npos);
  };
  expect(make("lenet", to_train_on(fl::test::images(2, 2, {1, 2, 3, 4}, {0}))), "1x2x2");
  expect(make("resnet", {}), "resnet");
  expect(make("lenet", {}, "tpu"), "tpu");
  expect(make("lenet", {}, "cpu", "fp8"), "fp8");
  expect(fl::make_torch_trainer({.model = "lenet", .data = "", .threads = -1}, {}), "threads -1");
  expect(fl::make_torch_trainer({.model = "lenet", .data = "", .hogwild = 0}, {}), "hogwild 0");
  if (torch::cuda::is_available()) {
    CHECK(make("lenet", {}, "cuda").has_value());
  } else {
    expect(make("lenet", {}, "cuda"), "\"cuda\"");
  }
  CHECK(make("lenet", {}, "auto").has_value());
}

// libtorch makes the update on its own CUDA stream and the coder's kernels read it on theirs.
TEST_CASE("an update on a GPU is coded there, with the same bytes as on the CPU") {
  if (!torch::cuda::is_available()) {
    MESSAGE("skipped: there is no GPU");
    return;
  }
  const auto trainer = make("cnn", to_train_on(made_up_images(200, 1)), "cuda").value();
  fl::codec::DeviceCoder coder(trainer->make_codec_device().value());
  REQUIRE(coder.is_there());
  auto weights = trainer->initial_weights(3).value();
  for (const char* spec : {"ecuq:4", "ecuq:2", "qsgd:7", "kbit:8", "terngrad,clip=0",
                           "topk:0.01+qsgd:8", "threshold:0.001", "powersgd:2"}) {
    CAPTURE(spec);
    const auto codec = fl::codec::parse_codec(spec).value();
    const auto update = train(*trainer, weights, {.batch_size = 20, .lr = 0.01});
    const auto payload = [&](const fl::codec::DeviceCopy& device) {
      std::vector<std::byte> bytes;
      fl::codec::VectorSink sink(bytes);
      codec->encode(trainer->layout(), update, 5, sink, 0, nullptr, 1, device).value();
      return bytes;
    };
    // Codes the update on the device itself, then a copy of the update in the host's memory.
    for (const float* const values :
         {trainer->update_on_device(), static_cast<const float*>(nullptr)}) {
      const std::uint64_t before = coder.results();
      const auto there = payload({.coder = &coder, .values = values});
      const bool is_same = there == payload({});
      CHECK(is_same);
      CHECK(coder.is_there());
      CHECK(coder.results() > before);
    }
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
  }
}

// Trains on a tenth of Fashion-MNIST through make_trainer(), as a client does. Chance is 10 %.
TEST_CASE("LeNet learns Fashion-MNIST, also in lower precision and with racing threads") {
  using Way = std::pair<std::string, int>;  // The precision, and the threads of hogwild.
  double plain = 0;                         // The loss in fp32.
  std::vector<Way> ways = {{"fp32", 1}, {"fp32", 2}};
  for (const char* low : fl::test::some_of(std::vector{"bf16", "fp16"})) ways.push_back({low, 1});
  for (const auto& [precision, hogwild] : ways) {
    const auto made = fl::make_trainer({.model = "lenet",
                                        .data = "fashion-mnist",
                                        .shard = 2,
                                        .shards = 10,
                                        .device = "cpu",
                                        .precision = precision,
                                        .threads = 1,
                                        .hogwild = hogwild});
    if (!made && made.error().code() == fl::Errc::not_found) {
      MESSAGE("skipped: " << made.error().message());
      return;
    }
    REQUIRE(made.has_value());
    fl::Trainer& trainer = **made;
    CHECK(trainer.train_examples() == 5400);
    CHECK(trainer.holdout_examples() == 600);
    auto weights = trainer.initial_weights(1).value();
    const double before = trainer.evaluate(weights, {})->loss;
    const auto update =
        train(trainer, weights, {.local_epochs = 3, .batch_size = 32, .lr = 0.02, .momentum = 0.9});
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
    const auto after = trainer.evaluate(weights, {});
    MESSAGE(precision << ", " << hogwild << " threads: accuracy " << accuracy_of(*after)
                      << ", loss " << before << " -> " << after->loss);
    CHECK(accuracy_of(*after) > 0.6);
    CHECK(after->loss < before);
    // The accuracy of 600 examples is too coarse a measure of the formats.
    if (plain == 0) plain = after->loss;
    if (hogwild == 1) CHECK(after->loss < 1.15 * plain);
  }
}
