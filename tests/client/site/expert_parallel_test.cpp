// SPDX-License-Identifier: Apache-2.0
// Ranks that have some of the experts each, against one process that has all of them: layers by
// themselves, and grids with the other ways of dividing.
#include "client/learn/torch/experts.hpp"
#include "client/learn/torch/layer.hpp"
#include "client/site/rank/expert_ranks.hpp"
#include "tests/client/site/grids.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

constexpr std::int64_t width = 16;
constexpr std::int64_t all_tokens_count = 64;
const std::string one_block = "transformer:layers=1,width=16,heads=4,context=32,experts=4";
// Without a limit, which ranks would reach by their own tokens.
const std::string free_mixture = dense + ",experts=4,capacity=adaptive,aux=0.1,z=0.01";
// Without the auxiliary loss, too, which depends on which tokens are in one pass.
const std::string linear_mixture = dense + ",experts=4,capacity=adaptive,aux=0,z=0.01";

std::vector<int> everyone(int size) {
  std::vector<int> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rank);
  return all;
}

/// A block's experts, or those that a rank has: the same values for each of them.
struct Block {
  explicit Block(const std::string& model, ExpertGroup* group = nullptr)
      : spec(parse_model(model).value()),
        routing(std::make_shared<Routing>(spec.experts, 1)),
        mixture(std::make_shared<MixtureImpl>(spec, 0, routing, PassGroups{.experts = group})) {
    torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
    const std::int64_t ranks = group == nullptr ? 1 : group->division().ranks;
    const std::int64_t rank = ranks == 1 ? 0 : group->rank();
    for (const auto& item : mixture->named_parameters()) {
      torch::Tensor parameter = item.value();
      std::vector<std::int64_t> shape = parameter.sizes().vec();
      const bool is_expert = item.key() != "router.weight";
      if (is_expert) shape[0] *= ranks;
      torch::Tensor values = torch::randn(shape, generator) * 0.5;
      if (is_expert) values = values.chunk(ranks)[static_cast<std::size_t>(rank)].clone();
      parameter.set_data(values);
    }
  }

  [[nodiscard]] std::vector<torch::Tensor> gradients() const {
    std::vector<torch::Tensor> all;
    for (const torch::Tensor& parameter : mixture->parameters())
      all.push_back(parameter.grad().clone());
    return all;
  }

  ModelSpec spec;
  std::shared_ptr<Routing> routing;
  std::shared_ptr<MixtureImpl> mixture;  // Router; weight and bias of fc1; of fc2.
};

/// What a pass of a block makes.
struct Made {
  torch::Tensor outputs;                 // [1, tokens, width].
  torch::Tensor inputs;                  // Their gradient.
  std::vector<torch::Tensor> gradients;  // Those of the parameters.
};

torch::Tensor tokens() {
  return torch::randn({1, all_tokens_count, width}, at::make_generator<at::CPUGeneratorImpl>(8));
}

/// The pass of these tokens, in fp32 or in bf16, with a loss that weighs each output.
Made pass_of(Block& block, const torch::Tensor& x, Routing::Pass pass, bool is_low) {
  block.routing->begin(std::move(pass));
  block.mixture->set_format(is_low ? NumberFormat::bf16 : NumberFormat::fp32);
  const torch::Tensor given = x.clone().requires_grad_();
  torch::Tensor outputs;
  {
    std::optional<MixedPass> mixed;
    if (is_low) mixed.emplace(torch::kCPU, NumberFormat::bf16);
    outputs = block.mixture->forward(given);
  }
  (outputs * torch::sin(outputs.detach())).sum().backward();
  return {outputs.detach(), given.grad().clone(), block.gradients()};
}

/// How ranks have experts together.
struct Way {
  int ranks;
  std::vector<int> machines;  // Of each rank; empty: tokens go in one hop.
};
const std::vector<Way> ways{{2, {}}, {4, {}}, {4, {0, 0, 1, 1}}, {4, {0, 1, 0, 1}}};

/// Calls work(rank, group, its tokens) on each rank.
void on_expert_ranks(const Way& way,
                     const std::function<void(Ranks&, ExpertRanks&, const torch::Tensor&)>& work) {
  on_ranks(way.ranks, [&](Ranks& ranks) {
    const ExpertWay hops = way.machines.empty() ? ExpertWay::direct : ExpertWay::two_hops;
    ExpertRanks group({.ranks = way.ranks, .way = hops});
    group.enter(ranks.subgroup(everyone(way.ranks), "experts"), Nodes{way.machines});
    const auto part = static_cast<std::size_t>(ranks.rank());
    work(ranks, group, tokens().chunk(way.ranks, 1)[part]);
  });
}

std::vector<Made> made_by_ranks(const Way& way, const std::string& model, bool is_low) {
  std::vector<Made> made(static_cast<std::size_t>(way.ranks));
  on_expert_ranks(way, [&](Ranks& ranks, ExpertRanks& group, const torch::Tensor& x) {
    Block block(model, &group);
    made[static_cast<std::size_t>(ranks.rank())] = pass_of(
        block, x,
        {.weight = 1.0 / way.ranks, .sum = [&](torch::Tensor& values) { ranks.sum(values); }},
        is_low);
  });
  return made;
}

/// How many times a row goes from rank to rank.
std::int64_t hops_between(const Way& way, int from, int to) {
  if (way.machines.empty()) return from == to ? 0 : 1;
  const auto machine = [&](int rank) { return way.machines[static_cast<std::size_t>(rank)]; };
  const auto number = [&](int rank) {
    return std::count(way.machines.begin(), way.machines.begin() + rank, machine(rank));
  };
  return (machine(from) == machine(to) ? 0 : 1) + (number(from) == number(to) ? 0 : 1);
}

double relative(const torch::Tensor& a, const torch::Tensor& wanted) {
  return ((a - wanted).norm() / wanted.norm()).item<double>();
}

Shape with_experts(int dp, int ep) {
  Shape shape{dp, 1};
  shape.ep = ep;
  return shape;
}

/// Pairs of ep with each other way of dividing, and all of them.
std::vector<Shape> grids_with_experts() {
  std::vector<Shape> all{with_experts(2, 2), with_experts(4, 2), with_experts(4, 4)};
  Shape texts = with_experts(1, 2);
  texts.cp = 2;
  all.push_back(texts);
  texts = with_experts(2, 4);
  texts.cp = 2;
  texts.way = ContextWay::gather;
  all.push_back(texts);
  for (const bool divides_tokens : {false, true}) {
    Shape layers = with_experts(2, 2);
    layers.tp = 2;
    layers.divides_tokens = divides_tokens;
    all.push_back(layers);
  }
  for (const char* const pipeline : {"1f1b", "zb-h1"}) {
    Shape stages = with_experts(2, 2);
    stages.pp = 2;
    stages.pipeline = pipeline;
    all.push_back(stages);
  }
  Shape every = with_experts(2, 2);
  every.tp = every.cp = every.pp = 2;
  all.push_back(every);
  return all;
}

/// The stages of ZeRO that go with a grid.
std::vector<int> stages_of(const Shape& shape) {
  if (shape.size() == 16) return {3};
  return shape.pipeline == std::string("zb-h1") ? std::vector{0} : std::vector{0, 2, 3};
}

/// Calls check(shape, training) for each of these grids, with each stage of ZeRO that goes with it.
template <class Check>
void for_each_grid(const std::string& model, const Check& check) {
  for (const Shape& shape : grids_with_experts()) {
    for (const int zero : stages_of(shape)) {
      CAPTURE(shape.name());
      CAPTURE(zero);
      Training training = training_of(model, shape);
      training.zero = zero;
      check(shape, std::move(training));
    }
  }
}

}  // namespace

TEST_CASE("experts on several ranks make the bits of one process that has all tokens") {
  for (const std::string& model : {one_block + ",top=2,aux=0.1,z=0.01", one_block + ",top=1"}) {
    for (const bool is_low : {false, true}) {
      Block alone(model);
      const Made wanted = pass_of(alone, tokens(), {}, is_low);
      for (const Way& way : ways) {
        CAPTURE(model);
        CAPTURE(is_low);
        CAPTURE(way.ranks);
        CAPTURE(way.machines.size());
        const std::vector<Made> made = made_by_ranks(way, model, is_low);
        std::vector<torch::Tensor> outputs;
        std::vector<torch::Tensor> inputs;
        torch::Tensor router = torch::zeros_like(wanted.gradients[0]);
        for (const Made& one : made) {
          outputs.push_back(one.outputs);
          inputs.push_back(one.inputs);
          router += one.gradients[0];
        }
        CHECK(torch::equal(torch::cat(outputs, 1), wanted.outputs));
        CHECK(relative(torch::cat(inputs, 1), wanted.inputs) < 4e-7);
        CHECK(relative(router, wanted.gradients[0]) < 4e-7);
        for (std::size_t i = 1; i < wanted.gradients.size(); ++i) {
          std::vector<torch::Tensor> parts;
          for (const Made& one : made) parts.push_back(one.gradients[i]);
          CHECK(torch::equal(torch::cat(parts), wanted.gradients[i]));
        }
      }
    }
  }
}

TEST_CASE("each rank's tokens fill experts of all ranks up by themselves") {
  const std::string model = one_block + ",capacity=0.5,aux=0,z=0";
  for (const Way& way : ways) {
    CAPTURE(way.ranks);
    const std::vector<Made> made = made_by_ranks(way, model, false);
    const auto parts = tokens().chunk(way.ranks, 1);
    bool has_dropped = false;
    for (std::size_t rank = 0; rank < made.size(); ++rank) {
      Block alone(model);
      const Made wanted = pass_of(alone, parts[rank], {}, false);
      CHECK(relative(made[rank].outputs, wanted.outputs) < 1e-6);
      CHECK(relative(made[rank].inputs, wanted.inputs) < 1e-6);
      has_dropped = has_dropped || wanted.outputs.abs().sum(2).eq(0).any().item<bool>();
    }
    CHECK(has_dropped);
  }
}

TEST_CASE("a rank without tokens, and experts without any, take part with a gradient of 0") {
  for (const Way& way : ways) {
    CAPTURE(way.ranks);
    on_expert_ranks(way, [&](Ranks& ranks, ExpertRanks& group, const torch::Tensor& x) {
      Block block(one_block + ",top=1,aux=0.1,z=0.01", &group);
      block.mixture->parameters()[0].data().zero_();  // All choose the first expert.
      const bool is_empty = ranks.rank() == 1;
      Routing::Pass pass{.weight = is_empty ? 0.0 : 1.0,
                         .sum = [&](torch::Tensor& values) { ranks.sum(values); }};
      if (is_empty) pass.counted = torch::zeros({x.size(1)}, torch::kBool);
      const Made made = pass_of(block, x, std::move(pass), false);
      CHECK(made.outputs.eq(0).all().item<bool>() == is_empty);
      CHECK(made.inputs.eq(0).all().item<bool>() == is_empty);
      const bool has_work = ranks.rank() == 0;
      CHECK(made.gradients[1].eq(0).all().item<bool>() != has_work);
    });
  }
}

TEST_CASE("tokens go to their experts and back, and their gradients: these bytes and counts") {
  for (const bool is_low : {false, true})
    for (const Way& way : ways) {
      CAPTURE(is_low);
      CAPTURE(way.ranks);
      CAPTURE(way.machines.size());
      std::vector<std::uint64_t> sent(static_cast<std::size_t>(way.ranks));
      on_expert_ranks(way, [&](Ranks& ranks, ExpertRanks& group, const torch::Tensor& x) {
        Block block(one_block, &group);
        const std::uint64_t before = ranks.bytes_sent();
        static_cast<void>(pass_of(block, x, {}, is_low));
        sent[static_cast<std::size_t>(ranks.rank())] = ranks.bytes_sent() - before;
      });
      std::int64_t rows = 0;    // Times the hops that they take.
      std::int64_t pieces = 0;  // From a rank to another one, times hops.
      Block alone(one_block);
      alone.mixture->eval();
      const auto parts = tokens().chunk(way.ranks, 1);
      for (int from = 0; from < way.ranks; ++from) {
        alone.routing->clear();
        static_cast<void>(alone.mixture->forward(parts[static_cast<std::size_t>(from)]));
        const torch::Tensor got =
            alone.routing->measured()[0][0].view({way.ranks, -1}).sum(1).to(torch::kInt64);
        for (int to = 0; to < way.ranks; ++to) {
          const std::int64_t hops = hops_between(way, from, to);
          rows += got[to].item<std::int64_t>() * hops;
          pieces += hops;
        }
      }
      const std::int64_t own_experts = 4 / way.ranks;
      std::int64_t bytes = 4 * rows * width * (is_low ? 2 : 4) + pieces * own_experts * 8;
      // Two hops also send, five times, the counts of the second hop's pieces to a neighbour.
      if (!way.machines.empty()) bytes += 5 * way.ranks * 2 * 8;
      CHECK(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}) ==
            static_cast<std::uint64_t>(bytes));
    }
}

TEST_CASE("the gradient of grids with divided experts is that of one process") {
  const std::vector<float> wanted = gradient_alone(free_mixture);
  for_each_grid(free_mixture, [&](const Shape& shape, const Training& training) {
    CHECK(worst_distance(free_mixture, joined(shape.size(), training, note_gradient), wanted) <
          2e-6);
  });
}

TEST_CASE("grids with divided experts train as one process does, and clip by the whole gradient") {
  for_each_grid(linear_mixture, [](const Shape& shape, Training training) {
    training.settings.momentum = 0;
    training.settings.accumulate = 2;
    training.settings.clip_norm = 0.5;
    CHECK(distance_from_alone(shape.size(), training) < 1e-6);
  });
}

TEST_CASE("divided experts have the same bits with recomputation, and run after run") {
  for (const Shape& shape : {with_experts(4, 2), grids_with_experts()[5]}) {
    CAPTURE(shape.name());
    Training training = training_of(mixture, shape);
    training.zero = 3;
    const auto wanted = joined_update(train_ranks(shape.size(), training));
    CHECK(joined_update(train_ranks(shape.size(), training)) == wanted);
    training.recomputes = true;
    CHECK(joined_update(train_ranks(shape.size(), training)) == wanted);
  }
}

TEST_CASE("the trace has each exchange of tokens, and what these take counts as waiting") {
  Training training = training_of(free_mixture, with_experts(2, 2));
  for (const Trained& rank : train_ranks(2, training)) {
    std::size_t exchanges = 0;
    double seconds = 0;
    std::uint64_t bytes = 0;
    for (const TraceSpan& span : rank.spans) {
      if (span.name != "all-to-all" || span.track != std::string("other collectives")) continue;
      ++exchanges;
      seconds += static_cast<double>(span.duration_us) / 1e6;
      bytes += span.bytes;
    }
    // In each of two blocks: counts, tokens there and back, and their gradients back and there.
    CHECK(exchanges == 4 * 2 * 5);
    CHECK(bytes > 0);
    CHECK(rank.times.exposed >= seconds * 0.99);
    CHECK(rank.times.compute > 0);
    CHECK(rank.times.compute + rank.times.exposed <= rank.report.seconds * 1.01);
  }
}

TEST_CASE("mixed precision with divided experts is near fp32, and the same with recomputation") {
  for (const std::string& precision : std::vector<std::string>{"bf16", "fp16", "adaptive:fp16"}) {
    CAPTURE(precision);
    const MixedStep step = mixed_step(with_experts(4, 2), precision, free_mixture);
    CHECK(step.is_other);
    CHECK(step.distance < 2e-2);
    CHECK(step.is_repeatable);
  }
}

TEST_CASE("divided experts evaluate as those of one process do") {
  const EvalReport wanted = evaluation_alone(free_mixture);
  for (const Shape& shape : grids_with_experts()) {
    CAPTURE(shape.name());
    for (const EvalReport& report : evaluations(free_mixture, shape))
      CHECK(are_alike(report, wanted));
  }
}

TEST_CASE("each element of divided experts is written by one rank, which has read it") {
  for_each_grid(free_mixture, [](const Shape& shape, const Training& training) {
    for (const bool does : write_each_once(shape, training)) CHECK(does);
  });
}

TEST_CASE("divided experts go on with the moments of others, and of none") {
  // The second round, after a first one with experts on four ranks.
  const auto train = [](const Shape& second) {
    const TemporaryFolder folder;
    std::vector<float> update;
    for (const Shape& shape : {with_experts(4, 4), second}) {
      Training training = training_of(free_mixture, shape);
      training.state = folder.path().string();
      training.settings.round = update.empty() ? 1 : 2;
      training.settings.batch_size = 8U / static_cast<std::uint32_t>(shape.dp);
      training.zero = 3;
      update = joined_update(train_ranks(shape.size(), training));
    }
    return update;
  };
  const auto wanted = train(with_experts(4, 4));
  for (const Shape& shape : {with_experts(4, 2), with_experts(2, 2), Shape{1, 1}}) {
    CAPTURE(shape.name());
    CHECK(distance(training_of(free_mixture, shape), train(shape), wanted) < 1e-6);
  }
}

}  // namespace fl::test
