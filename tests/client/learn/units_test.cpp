// SPDX-License-Identifier: Apache-2.0
// A module as a chain of units: where each begins, and activations that are computed again.
#include "client/learn/torch/units.hpp"

#include "client/learn/torch/torch_trainer.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/support/allocated_bytes.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {
namespace {

const std::string transformer = "transformer:layers=3,width=16,heads=2,context=32";
const std::string experts = transformer + ",experts=4,capacity=1,aux=0.1";

std::vector<float> update_of(const std::string& model, const std::string& precision,
                             bool recomputes) {
  const bool has_text = model.starts_with("transformer");
  const auto data = has_text ? local(made_up_texts(std::vector<std::uint16_t>(16, 33)))
                             : local(made_up_images(48, 1));
  const auto trainer = make_torch_trainer({.model = model,
                                           .data = "",
                                           .device = "cpu",
                                           .precision = precision,
                                           .recomputes = recomputes,
                                           .threads = 1},
                                          data)
                           .value();
  const auto weights = trainer->initial_weights(3).value();
  std::vector<float> update(weights.size());
  const TrainSettings settings{
      .local_steps = 4, .batch_size = 4, .accumulate = 2, .lr = 0.05, .momentum = 0.9, .seed = 9};
  const auto report = trainer->train(weights, settings, {}, update, {});
  INFO((report ? std::string() : report.error().message()));
  REQUIRE(report.has_value());
  return update;
}

/// Counts the bytes that a forward pass keeps for the backward pass.
std::size_t bytes_kept(bool recomputes) {
  const auto module = make_module(transformer).value();
  Units units(module, parse_model(transformer).value());
  units.recompute(recomputes);
  const torch::Tensor inputs = torch::zeros({64, 32}, torch::kInt64);
  const std::size_t before = allocated_bytes();
  const torch::Tensor outputs = units.forward(inputs);
  return allocated_bytes() - before - outputs.nbytes();
}

}  // namespace

TEST_CASE("the units of a model are its layers and blocks, one behind the other") {
  for (const std::string& model :
       std::vector<std::string>{transformer, std::string("resnet20"), std::string("lenet"),
                                std::string("cnn"), std::string("mlp")}) {
    CAPTURE(model);
    const auto module = make_module(model).value();
    const Units units(module, parse_model(model).value());
    std::int64_t at = 0;
    for (const Unit& unit : units.units()) {
      CHECK(unit.begin == at);
      CHECK(unit.count > 0);
      at += unit.count;
    }
    std::int64_t parameters = 0;
    for (const torch::Tensor& parameter : module->parameters()) parameters += parameter.numel();
    CHECK(at == parameters);
  }
  const auto module = make_module(transformer).value();
  const Units units(module, parse_model(transformer).value());
  CHECK(units.units().size() == 6);  // Tokens, positions, three blocks, the last norm.
  CHECK(units.units()[0].is_shared);
  CHECK_FALSE(units.units()[1].is_shared);
}

TEST_CASE("activations that are computed again change no bit of the update") {
  for (const std::string& model : {transformer, experts, std::string("resnet8:1x28x28-10"),
                                   std::string("lenet"), std::string("mlp")}) {
    for (const std::string& precision :
         std::vector<std::string>{"fp32", "bf16", "adaptive:fp16", "bf16,*norm*=fp32"}) {
      if (precision.find("norm") != std::string::npos && model != transformer) continue;
      CAPTURE(model);
      CAPTURE(precision);
      const auto kept = update_of(model, precision, false);
      CHECK(update_of(model, precision, true) == kept);
    }
  }
}

TEST_CASE("activations that are computed again take no memory meanwhile") {
  // A block keeps at least its inputs, q, k and v, and four times its width twice.
  CHECK(bytes_kept(true) < bytes_kept(false) / 4);
}

}  // namespace fl::test
