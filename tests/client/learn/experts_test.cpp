// SPDX-License-Identifier: Apache-2.0
// Blocks with experts, against sums over single tokens as the papers have them.
#include "client/learn/torch/experts.hpp"

#include "client/learn/torch/torch_trainer.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/client/learn/made_up_texts.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {
namespace {

constexpr std::int64_t width = 8;

/// A block's experts with random parameters, of a model with these settings.
struct Block {
  explicit Block(const std::string& settings)
      : spec(parse_model("transformer:layers=1,width=8,heads=2," + settings).value()),
        routing(std::make_shared<Routing>(spec.experts, 1)),
        mixture(std::make_shared<MixtureImpl>(spec, 0, routing)) {
    torch::manual_seed(5);
    for (const auto& item : mixture->named_parameters()) {
      torch::Tensor parameter = item.value();
      parameter.set_data(torch::randn(parameter.sizes()) * 0.5);
      parameters.push_back(parameter);
    }
  }
  ModelSpec spec;
  std::shared_ptr<Routing> routing;
  std::shared_ptr<MixtureImpl> mixture;
  std::vector<torch::Tensor> parameters;  // Router; weight and bias of fc1; of fc2.
};

struct Expected {
  torch::Tensor outputs;          // [tokens, width].
  torch::Tensor loss;             // The auxiliary losses.
  std::vector<std::int64_t> got;  // Tokens of each expert, without dropping.
};

/// One token after the other. counted: which of them count.
Expected expected_of(const Block& block, const torch::Tensor& x, const std::vector<bool>& counted) {
  const ModelSpec::Experts& experts = block.spec.experts;
  const auto tokens = std::ranges::count(counted, true);
  const auto most = experts.capacity == 0
                        ? tokens
                        : static_cast<std::int64_t>(std::ceil(
                              experts.capacity * static_cast<double>(tokens * experts.top) /
                              static_cast<double>(experts.count)));
  std::vector<std::int64_t> got(static_cast<std::size_t>(experts.count));
  std::vector<torch::Tensor> outputs;
  torch::Tensor shares = torch::zeros({experts.count});
  torch::Tensor sizes = torch::zeros({});
  for (std::int64_t t = 0; t < x.size(0); ++t) {
    torch::Tensor output = torch::zeros({width});
    if (!counted[static_cast<std::size_t>(t)]) {
      outputs.push_back(output);
      continue;
    }
    const torch::Tensor logits = block.parameters[0].matmul(x[t]);
    const torch::Tensor all = logits.exp() / logits.exp().sum();
    shares = shares + all / static_cast<double>(tokens);
    sizes = sizes + logits.exp().sum().log().square() / static_cast<double>(tokens);
    std::vector<std::pair<float, std::int64_t>> order;
    for (std::int64_t e = 0; e < experts.count; ++e) order.push_back({-all[e].item<float>(), e});
    std::ranges::sort(order);
    order.resize(static_cast<std::size_t>(experts.top));
    torch::Tensor chosen = torch::zeros({});
    for (const auto& [share, e] : order) chosen = chosen + all[e];
    for (const auto& [share, e] : order) {
      if (got[static_cast<std::size_t>(e)]++ >= most) continue;
      const torch::Tensor inner =
          torch::gelu(block.parameters[1][e].matmul(x[t]) + block.parameters[2][e]);
      const torch::Tensor made = block.parameters[3][e].matmul(inner) + block.parameters[4][e];
      output = output + made * (experts.top > 1 ? all[e] / chosen : all[e]);
    }
    outputs.push_back(output);
  }
  torch::Tensor loss = sizes * experts.z;
  for (std::int64_t e = 0; e < experts.count; ++e) {
    const double part = static_cast<double>(got[static_cast<std::size_t>(e)]) /
                        static_cast<double>(tokens * experts.top);
    loss = loss + shares[e] * (experts.aux * static_cast<double>(experts.count) * part);
  }
  return {.outputs = torch::stack(outputs), .loss = loss, .got = std::move(got)};
}

std::vector<torch::Tensor> take_gradients(const Block& block, torch::Tensor& x) {
  std::vector<torch::Tensor> gradients{x.grad().clone()};
  x.mutable_grad().reset();
  for (const torch::Tensor& parameter : block.parameters) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return gradients;
}

bool are_near(const torch::Tensor& a, const torch::Tensor& b) {
  return torch::allclose(a, b, 1e-4, 1e-6);
}

const std::string dense = "transformer:layers=2,width=16,heads=2,context=32";

std::unique_ptr<Trainer> trainer_of(const std::string& model) {
  return make_torch_trainer({.model = model, .data = "", .device = "cpu", .threads = 1},
                            local(made_up_texts(std::vector<std::uint16_t>(40, 33)), 8))
      .value();
}

}  // namespace

TEST_CASE("each token goes to its likeliest experts, and the gradient has the auxiliary losses") {
  for (const std::string settings :
       {"experts=4,aux=0,z=0", "experts=4,top=1,aux=0.5,z=0", "experts=5,top=3,aux=0,z=0.25",
        "experts=4,capacity=1,aux=0.5,z=0.25", "experts=4,top=1,capacity=0.5,aux=0.5,z=0"}) {
    CAPTURE(settings);
    const Block block(settings);
    torch::Tensor x = torch::randn({2, 6, width}).requires_grad_();
    const torch::Tensor wanted = torch::randn({2, 6, width});
    for (const std::size_t left_out : {0U, 3U}) {
      CAPTURE(left_out);
      std::vector<bool> counted(12, true);
      torch::Tensor mask = torch::ones({12}, torch::kBool);
      for (std::size_t i = 0; i < left_out; ++i) {
        counted[5 + i] = false;
        mask[static_cast<std::int64_t>(5 + i)] = false;
      }
      constexpr double weight = 3;
      const Expected expected = expected_of(block, x.flatten(0, 1), counted);
      ((expected.outputs * wanted.flatten(0, 1)).sum() + expected.loss * weight).backward();
      const auto gradients = take_gradients(block, x);
      block.routing->begin({.counted = left_out > 0 ? mask : torch::Tensor(), .weight = weight});
      const torch::Tensor outputs = block.mixture->forward(x);
      CHECK(are_near(outputs.flatten(0, 1), expected.outputs));
      (outputs * wanted).sum().backward();
      const auto made = take_gradients(block, x);
      for (std::size_t i = 0; i < made.size(); ++i) {
        CAPTURE(i);
        CHECK(are_near(made[i], gradients[i]));
      }
    }
  }
}

TEST_CASE("a pass without a token that counts has gradients of 0") {
  const Block block("experts=4,aux=0.5,z=0.25");
  torch::Tensor x = torch::randn({1, 3, width}).requires_grad_();
  block.routing->begin({.counted = torch::zeros({3}, torch::kBool), .weight = 0});
  block.mixture->forward(x).sum().backward();
  for (const torch::Tensor& gradient : take_gradients(block, x))
    CHECK(torch::equal(gradient, torch::zeros_like(gradient)));
}

TEST_CASE("an evaluation drops nothing, and measures loads") {
  const Block block("experts=4,capacity=1");
  block.mixture->eval();
  block.routing->begin({});
  const torch::Tensor x = torch::randn({5, 4, width});
  Block roomy("experts=4,capacity=none");
  roomy.routing->begin({});
  CHECK(torch::equal(block.mixture->forward(x), roomy.mixture->forward(x)));
  const Expected expected = expected_of(block, x.flatten(0, 1), std::vector<bool>(20, true));
  std::int64_t over = 0;
  for (const std::int64_t got : expected.got) over += std::max<std::int64_t>(0, got - 10);
  const auto metrics = block.routing->metrics();
  REQUIRE(metrics.size() == 2);
  CHECK(metrics[0].name == "expert_load");
  CHECK(metrics[0].value ==
        doctest::Approx(static_cast<double>(std::ranges::max(expected.got)) / 10));
  CHECK(metrics[1].name == "dropped_tokens");
  CHECK(metrics[1].value == doctest::Approx(static_cast<double>(over) / 40));
  block.routing->clear();
  CHECK(block.routing->metrics().empty());
}

TEST_CASE("the metrics of a model with experts say how unlike their loads are") {
  const std::string model = dense + ",experts=4,capacity=1";
  const auto trainer = trainer_of(model);
  auto weights = trainer->initial_weights(3).value();
  // Without a router all tokens go to the first two of four experts.
  const Layout layout = builtin_layout(model).value();
  for (const Layout::Tensor& tensor : layout.tensors()) {
    if (!tensor.name.ends_with("router.weight")) continue;
    CHECK(tensor.shape == std::vector<std::int64_t>{4, 16});
    std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.elements, 0);
  }
  const auto before = trainer->evaluate(weights, {}).value();
  REQUIRE(before.metrics.size() == 3);
  CHECK(before.metrics[0].value == doctest::Approx(std::exp(before.loss)));
  CHECK(before.metrics[1].value == doctest::Approx(2));
  CHECK(before.metrics[2].value == doctest::Approx(0.5));
  CHECK((trainer->evaluate(weights, {}).value().metrics == before.metrics));
}

TEST_CASE("a model with experts learns, and the auxiliary loss evens out their loads") {
  std::vector<double> loads;
  for (const std::string& more : std::vector<std::string>{",aux=0", ",aux=1"}) {
    const std::string model = dense + ",experts=4,capacity=2" + more;
    const auto trainer = trainer_of(model);
    auto weights = trainer->initial_weights(3).value();
    const double before = trainer->evaluate(weights, {}).value().loss;
    std::vector<float> update(weights.size());
    TrainSettings settings{.local_steps = 60, .batch_size = 8, .lr = 0.005};
    settings.optimizer.kind = LocalOptimizer::Kind::adamw;
    REQUIRE(trainer->train(weights, settings, {}, update, {}).has_value());
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += update[i];
    const auto after = trainer->evaluate(weights, {}).value();
    CHECK(after.loss < before - 0.5);
    loads.push_back(after.metrics[1].value);
  }
  CAPTURE(loads[0]);
  CAPTURE(loads[1]);
  CHECK(loads[1] < loads[0] - 0.2);
}

}  // namespace fl::test
