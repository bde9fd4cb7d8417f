// SPDX-License-Identifier: Apache-2.0
// What --model says about built-in models: sizes, tasks, losses, and what is wrong with a text.
#include "shared/params/model_spec.hpp"
#include "shared/params/model_table.hpp"

#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <limits>

#include <cmath>
#include <string>
#include <vector>

namespace fl::test {
namespace {

using Loss = ModelSpec::Loss;
using Sizes = std::vector<std::int64_t>;
using Task = ModelSpec::Task;

ModelSpec spec_of(std::string_view model) {
  CAPTURE(std::string(model));
  const auto spec = parse_model(model);
  INFO((spec ? std::string() : spec.error().message()));
  REQUIRE(spec.has_value());
  return *spec;
}

TEST_CASE("sizes, task and loss stand in the model's name") {
  const ModelSpec mlp = spec_of("mlp:30-64-32-2");
  CHECK(mlp.input == Sizes{30});
  CHECK(mlp.hidden == Sizes{64, 32});
  CHECK(mlp.outputs == 2);
  CHECK(mlp.task == Task::classification);
  CHECK(mlp.scaled_inputs() == 30);
  CHECK(mlp.scaled_targets() == 0);

  const ModelSpec line = spec_of("linear:13-2");
  CHECK(line.hidden.empty());
  CHECK(line.task == Task::regression);
  CHECK(line.loss == Loss::mse);
  CHECK(line.scaled_targets() == 2);

  CHECK(spec_of("mlp:8-4-1").loss == Loss::mse);
  CHECK(spec_of("mlp:8-4-1,loss=mae").loss == Loss::mae);
  CHECK(spec_of("mlp:8-4-3,loss=mse").task == Task::regression);
  CHECK(spec_of("mlp:8-4-3").task == Task::classification);
  CHECK_FALSE(spec_of("mlp:8-4-1,scale=none").is_scaled());
  CHECK(spec_of("logistic:8-3").loss == Loss::cross_entropy);

  const ModelSpec images = spec_of("resnet32:3x32x40-100");
  CHECK(images.blocks == 5);
  CHECK(images.input == Sizes{3, 32, 40});
  CHECK(images.outputs == 100);
  CHECK_FALSE(images.is_scaled());
  CHECK(spec_of("cnn:1x28x28-1").scaled_targets() == 1);
  CHECK(spec_of("cnn:1x28x28-1").scaled_inputs() == 0);

  const ModelSpec text = spec_of("transformer:width=64,layers=2,heads=8,context=100");
  CHECK(text.task == Task::language);
  CHECK(text.input == Sizes{100});
  CHECK(text.width == 64);
  CHECK(text.outputs == 256);
  CHECK(spec_of("transformer").layers == 4);
  CHECK(spec_of("transformer:vocab=50257,context=131072").outputs == 50'257);
  CHECK(text.experts.count == 0);
  const auto experts = spec_of("transformer:experts=8,top=1,capacity=1.25,aux=0.02,z=0").experts;
  CHECK(experts.count == 8);
  CHECK(experts.top == 1);
  CHECK(experts.capacity == 1.25);
  CHECK(experts.aux == 0.02);
  CHECK(experts.z == 0);
  CHECK(spec_of("transformer:experts=8,capacity=none").experts.capacity == 0);
  CHECK(spec_of("transformer:experts=8,capacity=adaptive").experts.capacity == 0);
  CHECK(spec_of("transformer:experts=8").experts.top == 2);
}

TEST_CASE("short names are specs for 28x28 grey images with 10 classes") {
  const auto layout_of = [](std::string_view model) { return builtin_layout(model).value(); };
  CHECK(layout_of("mlp").digest() == layout_of("mlp:784-200-200-10,scale=none").digest());
  CHECK(layout_of("logistic").digest() == layout_of("logistic:784-10,scale=none").digest());
  CHECK(layout_of("cnn").digest() == layout_of("cnn:1x28x28-10").digest());
  CHECK(layout_of("resnet20").digest() == layout_of("resnet20:1x28x28-10").digest());
}

TEST_CASE("a model says what its data may be") {
  const auto data_of = [](std::string_view model) {
    return example_data(parse_model(model).value());
  };
  CHECK(data_of("lenet") == "fashion-mnist");
  CHECK(data_of("logistic") == "fashion-mnist");
  CHECK(data_of("resnet8:3x32x32-5") == "images:FOLDER");
  CHECK(data_of("cnn:1x9x9-1") == "npz:FILE");
  CHECK(data_of("logistic:13-2") == "csv:FILE,target=COLUMN");
  CHECK(data_of("linear:784-1") == "csv:FILE,target=COLUMN");
  CHECK(data_of("transformer") == "text:FOLDER");
  CHECK(data_of("transformer:vocab=50257") == "tokens:FILE");
  CHECK(data_of("synthetic:100").empty());
}

TEST_CASE("models of given sizes have as many parameters as their formulas say") {
  const auto elements = [](std::string_view model) {
    return builtin_layout(model).value().elements();
  };
  CHECK(elements("linear:13-1") == 13 + 1 + 2 * 14);  // Means and variances of 14 values.
  CHECK(elements("mlp:30-64-2") == 30 * 64 + 64 + 64 * 2 + 2 + 2 * 30);
  CHECK(elements("cnn:3x32x32-10") ==
        (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 8 * 8 + 1) * 512 + 513 * 10);
  // He 2016, table 6: 0.27 million parameters on CIFAR-10, and statistics of 688 channels.
  CHECK(elements("resnet20:3x32x32-10") == 269'722 + 1376);
  // 12 w^2 + 13 w a block, the embeddings and the last norm.
  CHECK(elements("transformer:layers=3,width=32,heads=4,context=50") ==
        3 * (12 * 32 * 32 + 13 * 32) + (256 + 50) * 32 + 2 * 32);
  CHECK(elements("transformer:layers=1,width=32,heads=4,context=50,vocab=1000") ==
        12 * 32 * 32 + 13 * 32 + (1000 + 50) * 32 + 2 * 32);
  // 4 w^2 + 8 w of a block are no experts; an expert has 8 w^2 + 5 w, and w in the router.
  CHECK(elements("transformer:layers=2,width=32,heads=4,context=50,experts=6") ==
        2 * (4 * 32 * 32 + 8 * 32 + 6 * (8 * 32 * 32 + 5 * 32 + 32)) + (256 + 50) * 32 + 2 * 32);
}

TEST_CASE("a text that is no model is refused, with what is wrong") {
  const std::vector<std::pair<std::string, std::string>> wrongs = {
      {"mlp:", "IN-H1-...-OUT"},
      {"mlp:30", "IN-H1-...-OUT"},
      {"mlp:30-0-2", "IN-H1-...-OUT"},
      {"mlp:30--2", "IN-H1-...-OUT"},
      {"mlp:30-a-2", "IN-H1-...-OUT"},
      {"mlp:99999999999-2", "IN-H1-...-OUT"},
      {"linear:1-2-3", "IN-OUT"},
      {"logistic:30-1", "at least 2 classes"},
      {"logistic:30-2,loss=mse", "no option 'loss'"},
      {"linear:30-2,loss=cross-entropy", "mse mae"},
      {"mlp:30-2-1,loss=cross-entropy", "at least 2 classes"},
      {"mlp:30-2,scale=some", "all none"},
      {"mlp:30-2,depth=2", "no option 'depth'"},
      {"mlp:30-2,", "KEY=VALUE"},
      {"mlp:5000-10", "limit is 4096: add ,scale=none"},
      {"cnn:28x28-10", "CHANNELSxHEIGHTxWIDTH-OUT"},
      {"cnn:1x28x28", "CHANNELSxHEIGHTxWIDTH-OUT"},
      {"cnn:1x3x28-10", "at least 4x4"},
      {"resnet9:1x28x28-10", "6n + 2"},
      {"resnetx:1x28x28-10", "6n + 2"},
      {"resnet2:1x28x28-10", "6n + 2"},
      {"resnet", "the models are"},
      {"resnet:1x28x28-10", "the models are"},
      {"lenet:1x28x28-10", "the models are"},
      {"vit:3x32x32-10", "the models are"},
      {"", "the models are"},
      {"transformer:width=30,heads=4", "multiple of heads"},
      {"transformer:context=131073", "more than 131072"},
      {"transformer:vocab=1", "2 or more"},
      {"transformer:top=2", "no option 'top'"},
      {"transformer:experts=4,top=5", "top at most experts"},
      {"transformer:experts=1025", "at most 1024"},
      {"transformer:experts=4,capacity=0",
       "capacity=0 must be none, adaptive, or a number above 0"},
      {"transformer:experts=4,capacity=nan", "must be none"},
      {"transformer:experts=4,aux=-1", "aux"},
      {"mlp:1" + std::string(600, '0'), "its 605 bytes are more than 512"},
      {"transformer:vocab=16777217", "more than 16777216"},
      {"transformer:context=1", "2 or more"},
      {"transformer:depth=2", "no option 'depth'"},
      {"cnn:3x16777216x16777216-10", "elements than the limit"},
  };
  for (const auto& wrong : wrongs) {
    const std::string& model = wrong.first;
    CAPTURE(model);
    const auto layout = builtin_layout(model);
    REQUIRE(layout.has_error());
    CAPTURE(layout.error().message());
    const bool is_known =
        layout.error().code() == Errc::invalid_input || layout.error().code() == Errc::too_large;
    CHECK(is_known);
    CHECK(layout.error().message().find(wrong.second) != std::string::npos);
  }
}

TEST_CASE("a scaled model begins with the mean and variance of all clients' values") {
  const std::string model = "linear:2-1";
  auto weights = builtin_initial_weights(model, 3).value();
  const Layout layout = builtin_layout(model).value();
  REQUIRE(layout.tensors().size() == 6);
  CHECK(layout.tensors()[2].name == "input.running_mean");
  CHECK(layout.tensors()[5].name == "target.running_var");
  CHECK(std::vector(weights.end() - 6, weights.end()) == std::vector<float>{0, 0, 1, 1, 0, 1});
  // Two examples of the first input, none of the second, three equal targets.
  write_scaling(model, std::vector<ColumnSummary>{{2, 5, 8}, {0, 0, 0}, {3, 7, 0}}, weights);
  CHECK(std::vector(weights.end() - 6, weights.end()) == std::vector<float>{5, 0, 4, 1, 7, 1});
}

TEST_CASE("a scaled model stores a variance that fp32 holds, however small or large") {
  const std::string model = "linear:2-1";
  auto weights = builtin_initial_weights(model, 3).value();
  const auto stored = [&](ColumnSummary one) {
    write_scaling(model, std::vector{one, one, one}, weights);
    return weights.back();
  };
  using Limits = std::numeric_limits<float>;
  CHECK(stored({2, 0, 2e-44}) == Limits::min());
  CHECK(stored({2, 0, 1e-99}) == Limits::min());
  CHECK(stored({2, 0, 1e40}) == Limits::max());
  CHECK(stored({2, 1000, 8}) == 4);
  // fp32 has 1.7e9 + 64 as 1.7e9 + 128 or as 1.7e9: what is left after that is far above the
  // deviation of 2, and counts in the variance.
  CHECK(stored({2, 1.7e9 + 60, 8}) == 60 * 60 + 4);
  CHECK(weights[weights.size() - 2] == 1.7e9F);
}

}  // namespace
}  // namespace fl::test
