// SPDX-License-Identifier: Apache-2.0
// parallel_bench memory [RANKS]: what ranks take of memory and send where they hold parts of a
// model
// (--zero 0 to 3, --recompute), beside the formulas of docs/guide/large-models.md. Each rank is a
// process with one thread, over Gloo on loopback; AdamW. Bytes are counted by formula
// (Ranks::bytes_sent()) and by the kernel, at the network interface `lo`: in a network namespace of
// its own nobody else sends there.
//
// parallel_bench overlap RANK SIZE STORE INTERFACE: this rank of a group that meets in the file
// STORE and talks over INTERFACE. Computing is played by sleeping, so that what is measured does
// not depend on cores: units of 3.2 MB, each of which takes 30 ms forward and 60 ms backward. Rank
// 0 prints the seconds of a step: of computing alone, of sending alone, and of both with and
// without the next unit's parameters under way. tests/bench/parallel_bench.py shapes the links.
#include "client/site/plan/rank_load.hpp"
#include "client/site/rank/shards/sharded_parallel.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/client/site/measured_training.hpp"

#include "client/learn/torch/units.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace fl;
using namespace fl::site;

// The first part: memory and bytes.

const std::string text_model = "transformer:layers=6,width=512,heads=8,context=64";

/// Bytes that have gone through this network namespace's loopback interface, with all headers.
double loopback_megabytes() {
  std::ifstream file("/proc/self/net/dev");
  std::string word;
  while (file >> word && word != "lo:") {
  }
  double received = 0;  // As much as was sent.
  file >> received;
  return received / 1e6;
}

int measure_memory(int size) {
  const Layout layout = builtin_layout(text_model).value();
  const double model = static_cast<double>(layout.bytes()) / 1e6;
  const Units units(make_module(text_model).value(), parse_model(text_model).value());
  double largest = 0;
  for (const Unit& unit : units.units())
    largest = std::max(largest, static_cast<double>(unit.count) * 4 / 1e6);
  fmt::print(
      "{}: {:.1f} MB in fp32, its largest unit {:.1f} MB; {} ranks, AdamW, 4 texts a rank.\n"
      "MB a rank above what its process takes before; bytes a step, in models.\n\n"
      "{:>6}{:>11}{:>9}{:>15}{:>7}{:>9}{:>9}{:>8}{:>9}{:>9}\n",
      text_model, model, largest, size, "--zero", "recompute", "making", "after forward", "most",
      "vectors", "after", "sent", "formula", "kernel");
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool recomputes : {false, true}) {
      test::Training training;
      training.model = text_model;
      training.zero = zero;
      training.recomputes = recomputes;
      training.settings = {.local_steps = 4, .batch_size = 4, .lr = 0.001, .seed = 9};
      training.settings.optimizer.kind = LocalOptimizer::Kind::adamw;
      training.data = [] { return test::made_up_texts(test::ragged_lengths()); };
      if (zero == 0) training.topology = backend_topology();
      const double before = loopback_megabytes();
      const auto ranks = test::measure_training(size, training);
      // Trained twice. What making a group and reading weights sends is small.
      const double kernel = (loopback_megabytes() - before) / 2;
      const test::RankMemory& rank = ranks.front();
      // Without units, which come and go; in models.
      const RankLoad formula = rank_load(0.25, 0, {.zero = zero, .ranks = size, .on_cpu = true});
      fmt::print("{:>6}{:>11}{:>9.0f}{:>15.0f}{:>7.0f}{:>9.0f}{:>9.0f}{:>8.3f}{:>9.3f}{:>9.3f}\n",
                 zero, recomputes ? "full" : "none", rank.making, rank.after_forward, rank.most,
                 formula.on_gpu * model, rank.after,
                 static_cast<double>(rank.sent_megabytes / rank.steps) / model, formula.sent,
                 kernel / size / static_cast<double>(rank.steps) / model);
    }
  }
  return 0;
}

// The second part: what is hidden.

constexpr int unit_count = 8;
constexpr std::int64_t unit_elements = 800'000;  // 3.2 MB.
constexpr auto forward_time = std::chrono::milliseconds(30);
constexpr auto backward_time = std::chrono::milliseconds(60);
constexpr int laps = 7;

bool sleeps = true;  // Else units compute nothing.

void play(std::chrono::milliseconds time) {
  if (sleeps) std::this_thread::sleep_for(time);
}

/// Passes its input on, in some time, and has a gradient for its weights.
class Played : public torch::autograd::Function<Played> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({weight});
    play(forward_time);
    return x + weight.slice(0, 0, 1);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    play(backward_time);
    return {gradients[0], torch::ones_like(context->get_saved_variables()[0])};
  }
};

struct PlayedLayer : torch::nn::Module {
  PlayedLayer() : weight(register_parameter("weight", torch::zeros({unit_elements}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return Played::apply(x, weight); }
  torch::Tensor weight;
};

/// A chain of such units on a rank.
struct Chain {
  Module module = std::make_shared<torch::nn::SequentialImpl>();
  Layout layout;
  std::unique_ptr<Units> units;
  std::unique_ptr<ShardedParallel> parallel;
  std::unique_ptr<HeldParameters> held;

  Chain(std::unique_ptr<Ranks> ranks, bool prefetches) {
    std::vector<TensorSpec> specs;
    for (int unit = 0; unit < unit_count; ++unit) {
      module->push_back(fmt::format("u{}", unit), PlayedLayer());
      specs.push_back({fmt::format("u{}.weight", unit), {unit_elements}});
    }
    layout = Layout::make(specs).value();
    units = std::make_unique<Units>(module, parse_model("mlp").value());
    parallel = std::make_unique<ShardedParallel>(
        [] {}, ShardedParallel::Options{.frees_parameters = true, .prefetches = prefetches});
    held = parallel->hold(module, layout, torch::kCPU, *units);
    parallel->enter(std::move(ranks));
    held->prepare();
    held->load(std::vector<float>(layout.elements(), 0.5F));
  }

  /// The median time of a step, in seconds.
  float step_s() {
    std::vector<torch::Tensor> trained = module->parameters();
    std::vector<float> times;
    for (int lap = 0; lap < laps; ++lap) {
      parallel->ranks().barrier();
      const auto begin = std::chrono::steady_clock::now();
      parallel->before_forward(trained, true);
      const torch::Tensor out = units->forward(torch::zeros({1}));
      parallel->backward(out.sum(), true);
      held->gradient().zero_();
      parallel->after_step(trained, lap + 1 == laps);
      times.push_back(
          std::chrono::duration<float>(std::chrono::steady_clock::now() - begin).count());
    }
    std::ranges::sort(times);
    return times[laps / 2];
  }
};

int measure_overlap(int rank, int size, const std::string& store_file,
                    const std::string& interface) {
  at::set_num_threads(1);
  const Ranks::Store store = c10::make_intrusive<c10d::FileStore>(store_file, -1);
  RankOptions options = test::loopback(std::chrono::seconds(60));
  options.interface = interface;
  const auto ranks = make_gloo_ranks(store, rank, size, options);
  std::vector<int> all;
  for (int one = 0; one < size; ++one) all.push_back(one);
  const auto step_s = [&](bool sleeping, bool prefetches, const char* name) {
    sleeps = sleeping;
    return Chain(ranks->subgroup(all, name), prefetches).step_s();
  };
  const float sending = step_s(false, true, "sending");
  const float plain = step_s(true, false, "plain");
  const float ahead = step_s(true, true, "ahead");
  ranks->barrier();
  if (rank > 0) return 0;
  const auto computing =
      std::chrono::duration<float>(unit_count * (forward_time + backward_time)).count();
  const float less = std::min(computing, sending);
  fmt::print("{:.3f} {:.3f} {:.3f} {:.3f} {:.3f} {:.3f}\n", computing, sending, plain, ahead,
             (computing + sending - plain) / less, (computing + sending - ahead) / less);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view what = count > 1 ? arguments[1] : "";
  if (what == "memory" && count <= 3)
    return measure_memory(count > 2 ? std::atoi(arguments[2]) : 4);
  if (what == "overlap" && count == 6)
    return measure_overlap(std::atoi(arguments[2]), std::atoi(arguments[3]), arguments[4],
                           arguments[5]);
  fmt::print(stderr, "parallel_bench memory [RANKS] | overlap RANK SIZE STORE INTERFACE\n");
  return 2;
}
