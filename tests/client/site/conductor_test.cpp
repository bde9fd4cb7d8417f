// SPDX-License-Identifier: Apache-2.0
// Work of a group on one thread, and gradient hooks in c10d's Reducer.
#include "client/site/rank/comm_hook.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <atomic>
#include <map>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace fl::test {

using namespace fl::site;
namespace {

class MeanHook : public GradientHook {
 public:
  void reduce(Bucket& bucket, Ranks& ranks) override {
    ranks.mean_in_rank_order(bucket.gradient);
    indices.push_back(bucket.index);
    lasts.push_back(bucket.is_last);
    buckets.push_back(bucket.parts);
  }
  std::vector<std::size_t> indices;
  std::vector<bool> lasts;
  std::vector<std::vector<Bucket::Part>> buckets;
};

/// Numbers that look random. (Threads share libtorch's generator.)
torch::Tensor made_up(torch::IntArrayRef shape, int seed) {
  const std::int64_t count = c10::multiply_integers(shape);
  return torch::sin((torch::arange(count, torch::kFloat) + 1) * (seed + 1.5)).view(shape);
}

/// Four layers.
struct Model {
  Model() {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(8, 8));
      layers->push_back(torch::nn::Tanh());
    }
    parameters = layers->parameters();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].copy_(made_up(parameters[i].sizes(), static_cast<int>(i)));
  }
  [[nodiscard]] torch::Tensor loss(int rank, int step) {
    return layers->forward(made_up({4, 8}, 100 * step + rank)).square().mean();
  }
  [[nodiscard]] torch::Tensor gradient() const {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : parameters) flat.push_back(parameter.grad().flatten());
    return torch::cat(flat);
  }

  torch::nn::Sequential layers;
  std::vector<torch::Tensor> parameters;
};

/// With a Reducer that begins with a bucket for each parameter.
struct Replica : Model {
  Replica(const Ranks::Group& group, GradientHook& hook, Conductor& conductor) {
    std::vector<std::vector<size_t>> indices;
    for (size_t i = parameters.size(); i-- > 0;) indices.push_back({i});
    reducer = std::make_unique<c10d::Reducer>(
        parameters, indices, group, std::vector<bool>(parameters.size(), false), 700, false, false,
        std::unordered_map<size_t, std::string>{}, 700, false, false, std::vector<int64_t>{});
    reducer->register_comm_hook(
        make_comm_hook(hook, conductor, parameters, times, [](const std::shared_ptr<Bucket>&) {}));
  }
  void step(int rank, int number) {
    layers->zero_grad(false);
    reducer->prepare_for_forward();
    reducer->rebuild_buckets();
    times.forward();
    const torch::Tensor outcome = loss(rank, number);
    reducer->prepare_for_backward({});
    times.backward();
    outcome.backward();
    times.backward_ended(true);
  }

  StepTimes times;
  std::unique_ptr<c10d::Reducer> reducer;
};

/// Takes 5 ms more than the collective for each bucket.
struct SlowHook : MeanHook {
  void reduce(Bucket& bucket, Ranks& ranks) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    MeanHook::reduce(bucket, ranks);
  }
};

torch::Tensor mean_gradient(int size, int step) {
  torch::Tensor sum;
  for (int rank = 0; rank < size; ++rank) {
    Model model;
    model.loss(rank, step).backward();
    sum = rank == 0 ? model.gradient() : sum + model.gradient();
  }
  return sum / size;
}

}  // namespace

TEST_CASE("a conductor does work in the order of its queue, and brings exceptions back") {
  std::atomic<int> right = 0;
  on_ranks(3, [&](Ranks& ranks) {
    Conductor conductor(ranks);
    std::vector<torch::Tensor> values;
    std::vector<int> order;
    for (int i = 0; i < 20; ++i) values.push_back(torch::full({1000 + i}, ranks.rank() + i));
    for (int i = 0; i < 20; ++i)
      conductor.start([&values, i](Ranks& all) { all.sum(values[static_cast<size_t>(i)]); },
                      [&order, &right, i](const std::exception_ptr& error) {
                        right += !error;
                        order.push_back(i);
                      });
    conductor.run([](Ranks& all) { all.barrier(); });
    for (int i = 0; i < 20; ++i) {
      right += order.at(static_cast<size_t>(i)) == i;
      right += values[static_cast<size_t>(i)].eq(3 + 3 * i).all().item<bool>();
    }
    try {
      conductor.run([](Ranks&) { throw std::invalid_argument("mine"); });
    } catch (const std::invalid_argument& error) {
      right += std::string_view(error.what()) == "mine";
    }
  });
  CHECK(right == 3 * 61);
}

TEST_CASE("what a conductor that ends has not begun, ends with a failure") {
  std::atomic<int> failed = 0;
  on_ranks(1, [&](Ranks& ranks) {
    std::atomic<bool> has_begun = false;
    {
      Conductor conductor(ranks);
      conductor.start(
          [&](Ranks&) {
            has_begun = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
          },
          [&](const std::exception_ptr& error) { failed += error ? 100 : 0; });
      while (!has_begun) std::this_thread::yield();
      for (int i = 0; i < 3; ++i)
        conductor.start([&](Ranks&) { failed += 100; },
                        [&](const std::exception_ptr& error) { failed += error ? 1 : 100; });
    }
    CHECK(failed == 3);
  });
}

TEST_CASE("with a hook in c10d's Reducer every rank has the mean gradient, over rebuilt buckets") {
  constexpr int size = 3;
  constexpr int steps = 4;
  std::vector<torch::Tensor> expected;
  for (int step = 0; step < steps; ++step) expected.push_back(mean_gradient(size, step));
  std::atomic<int> right = 0;
  std::vector<MeanHook> hooks(size);
  on_ranks(size, [&](Ranks& ranks) {
    const auto group = ranks.subgroup({0, 1, 2}, "reducer");
    Conductor conductor(ranks);
    Replica replica(group->group(), hooks[static_cast<size_t>(ranks.rank())], conductor);
    for (int step = 0; step < steps; ++step) {
      replica.step(ranks.rank(), step);
      // The bits are equal.
      right += replica.gradient().equal(expected[static_cast<size_t>(step)]);
    }
  });
  CHECK(right == size * steps);
  for (const MeanHook& hook : hooks) {
    // Eight buckets in the first step; then those that the Reducer formed anew.
    REQUIRE(hook.indices.size() > 9);
    CHECK(hook.indices[7] == 7);
    CHECK((hook.lasts == hooks[0].lasts));
    CHECK(hook.lasts[7]);
    CHECK((hook.buckets == hooks[0].buckets));
    CHECK((hook.buckets[0].at(0) == Bucket::Part{.parameter = 7, .offset = 0, .shape = {8}}));
    CHECK(hook.buckets[8].size() > 1);
  }
}

TEST_CASE("a step's times tell what waited for gradients from what went on meanwhile") {
  std::vector<SyncTimes> sums(2);
  std::vector<std::vector<TraceSpan>> spans(2);
  on_ranks(2, [&](Ranks& ranks) {
    const auto group = ranks.subgroup({0, 1}, "reducer");
    SlowHook hook;
    Conductor conductor(ranks);
    Replica replica(group->group(), hook, conductor);
    ranks.observe([&](const Ranks::Call& call) { replica.times.called(call); });
    replica.times.begin_round(true);
    replica.step(ranks.rank(), 0);
    const auto at = static_cast<size_t>(ranks.rank());
    sums[at] = replica.times.sums();
    spans[at] = replica.times.take_spans();
    replica.times.begin_round(false);
    ranks.observe({});
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    const SyncTimes& sum = sums[rank];
    CHECK(sum.compute > 0);
    CHECK(sum.exposed >= 0.005);  // The last bucket at least.
    CHECK(sum.hidden + sum.exposed >= 8 * 0.005);
    CHECK(sum.coding >= 8 * 0.005);
    std::map<std::string, int> count;
    double waited = 0;
    for (const TraceSpan& span : spans[rank]) {
      ++count[span.track];
      ++count[span.name];
      if (span.name == "wait for gradients") waited += static_cast<double>(span.duration_us) / 1e6;
      if (span.track == "collectives") CHECK(span.bytes > 0);
    }
    CHECK(waited == doctest::Approx(sum.exposed).epsilon(0.01));
    CHECK(count["gradients"] == 8);
    CHECK(count["collectives"] == 16);  // Two make a mean in rank order.
    CHECK(count["code"] >= 8);          // The hook's pause before them.
    CHECK(count["bucket 7"] == 1);
    CHECK(count["steps"] == 3);  // Forward, backward and waiting.
    CHECK(count["forward"] == 1);
    CHECK(count["backward"] == 1);
  }
}

TEST_CASE("a rank that dies makes the others' backward pass throw") {
  std::atomic<int> failed = 0;
  on_ranks(3, [&](Ranks& ranks) {
    const auto group = ranks.subgroup({0, 1, 2}, "reducer");
    MeanHook hook;
    Conductor conductor(ranks);
    Replica replica(group->group(), hook, conductor);
    replica.step(ranks.rank(), 0);
    replica.step(ranks.rank(), 1);  // Until then the Reducer has collectives of its own.
    if (ranks.rank() == 2) return;
    try {
      replica.step(ranks.rank(), 2);
    } catch (const RankFailure&) {
      ++failed;
    }
  });
  CHECK(failed == 2);
}

TEST_CASE("residuals move with their parameters when buckets are formed anew, and when saved") {
  const auto bucket = [](const std::vector<std::int64_t>& parameters) {
    Bucket made{.index = 0, .is_last = false, .gradient = {}, .parts = {}};
    std::int64_t offset = 0;
    for (const std::int64_t parameter : parameters) {
      made.parts.push_back({.parameter = parameter, .offset = offset, .shape = {2, parameter + 1}});
      offset += 2 * (parameter + 1);
    }
    made.gradient = torch::zeros({offset});
    return made;
  };
  Residuals residuals;
  residuals.of(bucket({0, 1})).copy_(torch::tensor({1., 2., 3., 4., 5., 6.}));
  residuals.of(bucket({2})).fill_(7);
  CHECK(residuals.of(bucket({0, 1})).sum().item<float>() == 21);
  CHECK(residuals.of(bucket({1, 2}))
            .equal(torch::tensor({3., 4., 5., 6., 7., 7., 7., 7., 7., 7.}, torch::kFloat)));
  HookState state;
  residuals.save(state);
  CHECK(state.size() == 3);
  state.emplace_back("other", torch::ones({1}));
  Residuals again;
  again.load(state);
  CHECK(again.of(bucket({1, 0, 3}))
            .equal(torch::tensor({3., 4., 5., 6., 1., 2., 0., 0., 0., 0., 0., 0., 0., 0.},
                                 torch::kFloat)));
}

}  // namespace fl::test
