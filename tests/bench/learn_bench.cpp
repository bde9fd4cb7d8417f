// SPDX-License-Identifier: Apache-2.0
// learn_bench [THREADS [SECONDS]]: images/s of Trainer::train on LeNet in batches of 64, compared
// with a bare libtorch loop of the same network on the same data: torch::nn modules,
// torch::optim::SGD, cross_entropy, batches in the order of a randperm. The two take turns in short
// laps, so that a busy machine slows both alike.
#include "client/learn/data/random.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "tests/support/image_data.hpp"

#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::uint32_t examples = 1920;
constexpr std::uint32_t batch_size = 64;
constexpr std::uint32_t side = 28;

fl::DataSet noise() {
  fl::Random random(1, 0);
  std::vector<std::uint8_t> pixels(examples * side * side);
  std::vector<std::uint32_t> labels(examples);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random.below(256));
  for (auto& label : labels) label = random.below(10);
  return fl::test::images(side, side, std::move(pixels), std::move(labels));
}

// Pools before the ReLU, as the trainer does, because the loops are compared and not the models.
struct BareLenet : torch::nn::Module {
  torch::nn::Conv2d conv1{register_module("conv1", torch::nn::Conv2d(1, 6, 5))};
  torch::nn::Conv2d conv2{register_module("conv2", torch::nn::Conv2d(6, 16, 5))};
  torch::nn::Linear fc1{register_module("fc1", torch::nn::Linear(256, 120))};
  torch::nn::Linear fc2{register_module("fc2", torch::nn::Linear(120, 84))};
  torch::nn::Linear fc3{register_module("fc3", torch::nn::Linear(84, 10))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2)).view({-1, 256});
    return fc3(torch::relu(fc2(torch::relu(fc1(x)))));
  }
};

class BareLoop {
 public:
  explicit BareLoop(const fl::DataSet& set) : sgd_(model_.parameters(), 0.01) {
    images_ = torch::empty({examples, 1, side, side});
    const auto pixels = fl::test::pixels_of(set);
    for (std::size_t i = 0; i < pixels.size(); ++i)
      images_.data_ptr<float>()[i] = static_cast<float>(pixels[i]) / 255.0f;
    labels_ = torch::empty({examples}, torch::kInt64);
    std::ranges::copy(set.labels, labels_.data_ptr<std::int64_t>());
  }

  void epoch() {
    const torch::Tensor order = torch::randperm(examples);
    for (std::int64_t at = 0; at < examples; at += batch_size) {
      const torch::Tensor batch = order.narrow(0, at, batch_size);
      sgd_.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(
          model_.forward(images_.index_select(0, batch)), labels_.index_select(0, batch));
      loss.backward();
      sgd_.step();
    }
  }

 private:
  BareLenet model_;
  torch::optim::SGD sgd_;
  torch::Tensor images_;
  torch::Tensor labels_;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 10;
  const fl::DataSet images = noise();
  const auto made = fl::make_torch_trainer(
      {.model = "lenet", .data = "", .device = "cpu", .threads = threads}, fl::test::local(images));
  if (!made) {
    fmt::print(stderr, "learn_bench: {}\n", made.error().message());
    return 1;
  }
  fl::Trainer& trainer = **made;
  const auto weights = trainer.initial_weights(1).value();
  std::vector<float> update(weights.size());
  BareLoop bare(images);

  std::vector<double> ours;
  std::vector<double> theirs;
  bare.epoch();  // Not measured: libtorch's first steps initialize it.
  for (const auto begin = std::chrono::steady_clock::now(); seconds_since(begin) < seconds;) {
    auto lap = std::chrono::steady_clock::now();
    bare.epoch();
    theirs.push_back(seconds_since(lap));
    lap = std::chrono::steady_clock::now();
    const auto report = trainer.train(weights, {.batch_size = batch_size}, {}, update, {});
    if (!report) {
      fmt::print(stderr, "learn_bench: {}\n", report.error().message());
      return 1;
    }
    ours.push_back(seconds_since(lap));
  }
  fmt::print("lenet, batch {}, {} threads, median of {} epochs of {} images each:\n", batch_size,
             threads, ours.size(), examples);
  fmt::print("  Trainer::train      {:8.0f} images/s\n", examples / median(ours));
  fmt::print("  bare libtorch loop  {:8.0f} images/s\n", examples / median(theirs));
  fmt::print("  ratio               {:8.3f}\n", median(theirs) / median(ours));
  return 0;
}
