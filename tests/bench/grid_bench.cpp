// SPDX-License-Identifier: Apache-2.0
// grid_bench memory: what ranks take of memory and send where they divide layers, texts or a chain
// of layers (--parallel tp, cp, pp), beside the formulas of docs/guide/large-models.md. Each rank
// is a process with one thread, over Gloo on loopback. Bytes are counted by Ranks::bytes_sent().
//
// grid_bench experts: the same where ranks have some of the experts each (--parallel ep).
//
// grid_bench bubbles: how long ranks of a pipeline wait, by each schedule. Computing is played by
// sleeping, so that what is measured does not depend on cores: 20 ms forward, as long for the
// gradients of inputs and for those of weights. Values and gradients go over Gloo.
#include "client/learn/tensor_parts.hpp"
#include "client/learn/torch/pipeline.hpp"
#include "client/site/plan/formulas.hpp"
#include "client/site/rank/pipeline_ranks.hpp"
#include "tests/client/site/grids.hpp"
#include "tests/client/site/measured_training.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace fl;
using namespace fl::site;

// The first part: memory and bytes.

constexpr std::int64_t layers = 8;
constexpr std::int64_t width = 256;
constexpr std::int64_t tokens = 256;
constexpr std::int64_t at_once = 4;  // Texts in a pass.
constexpr std::int64_t passes = 8;   // In a step.
constexpr std::int64_t vocabulary = 256;

/// MB that a rank sends in a step, on the average: of the layers' values and, with cp, of
/// gradients, without the loss. `model`: MB of the weights.
double megabytes_by_formula(const test::Shape& shape, double model) {
  const auto values = static_cast<double>(at_once * tokens * width * 4) / 1e6;
  const double tp = shape.tp;
  const double cp = shape.cp;
  const double pp = shape.pp;
  // Two sums a block forward and two back, the embedding's, and the gradient of the logits' inputs.
  const double sums = (4.0 * layers + 2) / pp * values / cp * 2 * (tp - 1) / tp;
  // Keys and values forward and back, and their gradients back.
  const bool is_ulysses = shape.way == ContextWay::ulysses;
  const double keys =
      layers / pp * values / cp / tp * (is_ulysses ? 8 * (cp - 1) / cp : 6 * (cp - 1));
  const double stages = static_cast<double>(parse_pipeline(shape.pipeline, shape.pp)->stages());
  const double between = 2 * (stages - 1) / pp * values / cp / (shape.divides_tokens ? tp : 1);
  const double embedding = pp > 1 ? 2 / pp * static_cast<double>(vocabulary * width * 4) / 1e6 : 0;
  return passes * (sums + keys + between) + embedding / tp + 2 * (cp - 1) / cp * model / tp / pp;
}

/// Prints what four ranks take and send in a step of such a training.
void measure(const test::Shape& shape, const test::Training& training, const std::string& name,
             double formula) {
  const auto ranks = test::measure_training(shape.size(), training);
  const auto span_of = [&](float test::RankMemory::*what) {
    const auto [least, most] = std::ranges::minmax(ranks, {}, what);
    return fmt::format("{:.0f} to {:.0f}", least.*what, most.*what);
  };
  double sent = 0;
  for (const test::RankMemory& rank : ranks)
    sent += static_cast<double>(rank.all_megabytes / rank.steps) / shape.size();
  fmt::print("{:<36}{:>16}{:>16}{:>9.2f}{:>9.2f}\n", name,
             span_of(&test::RankMemory::after_forward), span_of(&test::RankMemory::most), sent,
             formula);
}

/// A step of so many passes.
test::Training step_of(const std::string& model, const test::Shape& shape, int zero) {
  test::Training training = test::training_of(model, shape);
  training.settings = {.local_steps = 1,
                       .batch_size = at_once,
                       .accumulate = passes,
                       .lr = 0.05,
                       .momentum = 0.9,
                       .seed = 9};
  training.zero = zero;
  training.data = [texts = at_once * passes * shape.dp] {
    return test::made_up_texts(
        std::vector<std::uint16_t>(static_cast<std::size_t>(texts), tokens + 1), tokens);
  };
  return training;
}

/// MB that a rank sends in a step with experts, where each expert gets as many tokens: gradients
/// and weights of its tensors over those that have them, and tokens with their gradients. `dense`
/// and `experts`: MB of the weights.
double megabytes_with_experts(const test::Shape& shape, int zero, double dense, double experts) {
  const double ranks = shape.dp;
  const double replicas = ranks / shape.ep;
  const double times = zero == 3 ? 3.0 * passes : 2.0;
  const double values = static_cast<double>(2 * at_once * tokens * width * 4) / 1e6;
  const double ep = shape.ep;
  return times * (dense * (ranks - 1) / ranks + experts / ep * (replicas - 1) / replicas) +
         passes * layers * 4 * values * (ep - 1) / ep;
}

int measure_experts() {
  const std::string model = fmt::format(
      "transformer:layers={},width={},heads=8,context={},experts=4", layers, width, tokens);
  const Layout layout = builtin_layout(model).value();
  double all = 0;
  double experts = 0;
  for (const Layout::Tensor& tensor : layout.tensors()) {
    const double megabytes = static_cast<double>(tensor.elements) * 4 / 1e6;
    all += megabytes;
    if (is_of_experts(tensor.name)) experts += megabytes;
  }
  fmt::print("{}: {:.1f} MB, of which {:.1f} are experts'; as for 'memory'\n\n", model, all,
             experts);
  struct Row {
    int zero;
    int ep;
    const char* capacity;
  };
  for (const auto& [zero, ep, capacity] : {Row{1, 1, ""},
                                           {1, 2, ""},
                                           {1, 4, ""},
                                           {3, 1, ""},
                                           {3, 2, ""},
                                           {3, 4, ""},
                                           {1, 1, ",capacity=1"},
                                           {1, 4, ",capacity=1"}}) {
    test::Shape shape{4, 1};
    shape.ep = ep;
    measure(shape, step_of(model + capacity, shape, zero),
            fmt::format("dp=4,ep={} --zero {}{}", ep, zero, capacity),
            megabytes_with_experts(shape, zero, all - experts, experts));
  }
  return 0;
}

int measure_grids() {
  const std::string model =
      fmt::format("transformer:layers={},width={},heads=8,context={}", layers, width, tokens);
  fmt::print(
      "{}; 4 ranks, SGD with a momentum; {} passes of {} texts a step.\n"
      "MB of a rank (the largest and the smallest of the four) above what its process takes "
      "before; "
      "MB that a rank sends in a step, on the average.\n\n{:<36}{:>16}{:>16}{:>9}{:>9}\n",
      model, passes, at_once, "", "after forward", "most", "sent", "formula");
  const double model_megabytes = static_cast<double>(builtin_layout(model).value().bytes()) / 1e6;
  std::vector<test::Shape> shapes{{1, 1}, {1, 4}, {1, 4, true}};
  for (const ContextWay way : {ContextWay::ring, ContextWay::gather, ContextWay::ulysses})
    shapes.push_back({1, 1, false, 4, way});
  for (const char* const pipeline : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
    test::Shape shape{1, 1};
    shape.pp = 4;
    shape.pipeline = pipeline;
    shapes.push_back(shape);
  }
  test::Shape both{1, 2, true};
  both.pp = 2;
  shapes.push_back(both);
  for (const test::Shape& shape : shapes) {
    // Without ZeRO what has been freed is kept for the next step.
    measure(shape, step_of(model, shape, 1), shape.name(),
            megabytes_by_formula(shape, model_megabytes));
  }
  return 0;
}

// The second part: how long ranks wait.

constexpr auto pass_time = std::chrono::milliseconds(20);
constexpr int laps = 3;

void play(std::int64_t chunks) { std::this_thread::sleep_for(pass_time / chunks); }

/// Values that take some time, forward and back; weights' gradients may be put off.
struct PlayedStage : torch::autograd::Function<PlayedStage> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               std::int64_t chunks, PutOff* put_off) {
    context->saved_data["chunks"] = chunks;
    context->saved_data["put_off"] = reinterpret_cast<std::int64_t>(put_off);
    play(chunks);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const std::int64_t chunks = context->saved_data["chunks"].toInt();
    auto* const put_off = reinterpret_cast<PutOff*>(context->saved_data["put_off"].toInt());
    play(chunks);
    if (put_off != nullptr)
      put_off->add([chunks] { play(chunks); });
    else
      play(chunks);
    return {gradients[0], torch::Tensor(), torch::Tensor()};
  }
};

/// Takes the work of a pipeline, and nothing else.
class PlainSync final : public StepSync {
 public:
  std::unique_ptr<HeldParameters> hold(const Module&, const Layout&, torch::Device,
                                       Units&) override {
    return nullptr;
  }
  std::int64_t rank() const override { return 0; }
  std::int64_t size() const override { return 1; }
  std::int64_t member() const override { return 0; }
  std::int64_t members() const override { return 1; }
  PassGroups groups() override { return {}; }
  void before_forward(const std::vector<torch::Tensor>&, bool) override {}
  void advance() override {}
  bool passes_are_joint() const override { return false; }
  void backward(const torch::Tensor&, bool) override {}
  void backward_stage(const std::vector<std::size_t>&, const std::function<void()>& work) override {
    work();
  }
  void reduce_stages(const std::vector<torch::Tensor>&) override {}
  void after_step(const std::vector<torch::Tensor>&, bool) override {}
  void broadcast(torch::Tensor&) override {}
  void sum(torch::Tensor&) override {}
  void sum_of_all(torch::Tensor&) override {}
  bool on_any(bool here) override { return here; }
};

/// Seconds of a step of so many microbatches.
float step_s(const PipelineDivision& division, std::int64_t microbatches) {
  float best = 1e9F;
  test::on_ranks(static_cast<int>(division.ranks), [&](Ranks& ranks) {
    std::vector<int> all(static_cast<std::size_t>(ranks.size()));
    std::iota(all.begin(), all.end(), 0);
    StepTimes times;
    PipelineRanks group(division);
    group.enter(ranks.subgroup(all, "stages"), times);
    PlainSync together;
    const torch::Tensor start = torch::zeros({1, 8, 32}).requires_grad_();
    Pipeline::Model model;
    model.blocks = division.stages();
    model.begin = [&](std::int64_t) { return start; };
    model.shape = [](const torch::Tensor&) { return std::vector<std::int64_t>{1, 8, 32}; };
    model.forward = [&](const torch::Tensor& values, const std::vector<std::size_t>&) {
      return PlayedStage::apply(values, division.chunks, group.put_off());
    };
    model.loss = [](const torch::Tensor& outputs) { return outputs.sum(); };
    for (int lap = 0; lap < laps; ++lap) {
      ranks.barrier();
      const auto begin = std::chrono::steady_clock::now();
      Pipeline(model, group, together).train(microbatches, {});
      ranks.barrier();
      const float took =
          std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count();
      if (ranks.rank() == 0) best = std::min(best, took);
    }
    group.leave();
  });
  return best;
}

int measure_bubbles() {
  fmt::print("{:<16}{:>6}{:>8}{:>9}{:>9}{:>9}{:>9}{:>18}\n", "schedule", "ranks", "passes", "work",
             "step", "waiting", "formula", "step / expected");
  for (const auto& [ranks, microbatches] : {std::pair{2, 4}, {4, 8}}) {
    for (const char* const schedule : {"gpipe", "1f1b", "interleaved:2", "zb-h1"}) {
      const PipelineDivision division = parse_pipeline(schedule, ranks).value();
      const float work =
          3 * std::chrono::duration<float>(pass_time).count() * static_cast<float>(microbatches);
      const float took = step_s(division, microbatches);
      const auto formula = static_cast<float>(pipeline_bubble(division, microbatches));
      fmt::print("{:<16}{:>6}{:>8}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}{:>18.3f}\n", schedule, ranks,
                 microbatches, work, took, took / work - 1, formula, took / work / (1 + formula));
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view what = count == 2 ? arguments[1] : "";
  if (what == "memory") return measure_grids();
  if (what == "experts") return measure_experts();
  if (what == "bubbles") return measure_bubbles();
  fmt::print(stderr, "grid_bench memory | experts | bubbles\n");
  return 2;
}
