// SPDX-License-Identifier: Apache-2.0
// Layers that compute in number formats of their own (--precision PATTERN=FORMAT).
#include "client/learn/torch/layer.hpp"
#include "client/learn/torch/torch_models.hpp"
#include "client/learn/torch/torch_trainer.hpp"
#include "tests/client/learn/made_up_images.hpp"

#include <doctest/doctest.h>
#include <torch/nn/modules/conv.h>

#include <memory>
#include <string>
#include <vector>

namespace {

fl::Result<std::unique_ptr<fl::Trainer>> trainer_in(const std::string& model,
                                                    const fl::DataSet& images,
                                                    const std::string& precision) {
  const fl::LearnOptions options = {
      .model = model, .data = "", .device = "cpu", .precision = precision, .threads = 1};
  return fl::make_torch_trainer(options, fl::test::to_train_on(images));
}

}  // namespace

TEST_CASE("layers train in formats of their own") {
  const fl::DataSet images = fl::test::made_up_images(40, 1);
  const fl::TrainSettings settings = {.local_steps = 4, .batch_size = 8, .lr = 0.05, .seed = 9};
  const auto update_of = [&](const std::string& model, const std::string& precision) {
    CAPTURE(precision);
    const auto trainer = trainer_in(model, images, precision).value();
    const auto weights = trainer->initial_weights(3).value();
    std::vector<float> update(weights.size());
    REQUIRE(trainer->train(weights, settings, {}, update, {}).has_value());
    return update;
  };
  const auto whole = update_of("lenet", "fp32");
  const auto low = update_of("lenet", "bf16");
  CHECK(low != whole);
  CHECK(update_of("lenet", "bf16,*=fp32") == whole);
  CHECK(update_of("lenet", "fp32,*=bf16") == low);
  const auto mixed = update_of("lenet", "fp32,conv?=bf16");
  CHECK(mixed != whole);
  CHECK(mixed != low);
  CHECK(update_of("lenet", "bf16,fc*=fp32,fc*=bf16") == mixed);
  CHECK(update_of("lenet", "fp16,*=fp32") == whole);  // A scale of the loss changes no bit.
  CHECK(update_of("lenet", "adaptive") == low);       // It had no reason to fall back.

  const auto wrong = trainer_in("lenet", images, "bf16,*norm*=fp32");
  REQUIRE(wrong.has_error());
  CHECK(wrong.error().message().find("its layers are conv1, conv2, fc1, fc2, fc3") !=
        std::string::npos);
}

TEST_CASE("each layer of a model computes in its format") {
  struct Case {
    std::string model;
    std::vector<std::string> layers;
  };
  for (const Case& one :
       {Case{"mlp", {"fc1", "fc2", "fc3"}},
        Case{"resnet8:1x28x28-10",
             {"conv1", "bn1", "block1.conv1", "block1.bn1", "block1.conv2", "block1.bn2",
              "block2.conv1", "block2.bn1", "block2.conv2", "block2.bn2", "block3.conv1",
              "block3.bn1", "block3.conv2", "block3.bn2", "fc"}},
        Case{"transformer:layers=1,width=16,heads=2,context=8",
             {"tokens", "positions", "block1.norm1", "block1.attention", "block1.projection",
              "block1.norm2", "block1.fc1", "block1.fc2", "norm", "logits"}}}) {
    CAPTURE(one.model);
    const auto made = fl::make_module(one.model);
    INFO((made ? std::string() : made.error().message()));
    REQUIRE(made.has_value());
    CHECK((fl::layers_of(**made) == one.layers));
  }
  const auto module = fl::make_module("lenet").value();
  REQUIRE(fl::set_formats(*module, fl::parse_precision("bf16,conv1=fp32").value()).has_value());
  auto& conv1 = *module->named_children()["conv1"]->as<fl::LayerImpl<torch::nn::Conv2dImpl>>();
  auto& conv2 = *module->named_children()["conv2"]->as<fl::LayerImpl<torch::nn::Conv2dImpl>>();
  const torch::Tensor images = torch::rand({2, 1, 28, 28});
  const torch::Tensor maps = torch::rand({2, 6, 12, 12});
  {
    const fl::MixedPass pass(torch::kCPU, fl::NumberFormat::bf16);
    CHECK((conv1.forward(images.to(torch::kBFloat16)).scalar_type() == torch::kFloat32));
    CHECK((conv2.forward(maps).scalar_type() == torch::kBFloat16));
    CHECK((torch::mm(images[0][0], images[1][0]).scalar_type() == torch::kBFloat16));
  }
  // Outside of training all is fp32.
  CHECK((conv1.forward(images).scalar_type() == torch::kFloat32));
  CHECK((conv2.forward(maps).scalar_type() == torch::kFloat32));
}
