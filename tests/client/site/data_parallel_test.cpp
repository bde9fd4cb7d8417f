// SPDX-License-Identifier: Apache-2.0
// Steps that ranks take together: what a trace has of them, how they show that they go on, and
// models whose parameters do not all get a gradient.
#include "client/site/rank/reducer_group.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace fl::test {

using namespace fl::site;
namespace {

std::unique_ptr<GradientHook> plain_hook() {
  return std::move(parse_hook("allreduce").value().hook);
}

std::int64_t end_of(const TraceSpan& span) { return span.begin_us + span.duration_us; }

/// The memory of this process.
double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0;
  double resident = 0;
  file >> size >> resident;
  return resident * 4096 / 1e6;
}

/// Which of a model's two branches a pass uses.
struct Use {
  bool first = true;
  bool second = true;
};
/// Says how a part of a batch uses the model. Each rank has a part.
using Pattern = std::function<Use(int step, int pass, int part)>;

/// A training of a model with two branches.
struct BranchedTraining {
  Pattern use = [](int, int, int) { return Use{}; };
  UnusedParameters unused = UnusedParameters::find;
  std::string hook = "allreduce";
  std::size_t bucket_bytes = 64;  // A bucket for each parameter.
  int passes = 1;                 // Passes in each step.
  bool touches_all = false;       // Parameters that are not used get a gradient of zeros.
};

torch::Tensor made_up(std::vector<std::int64_t> shape, double seed) {
  const std::int64_t elements = shape[0] * shape[1];
  return (torch::arange(elements) * 1.7 + seed).sin().reshape(shape);
}

class Branched {
 public:
  Branched() {
    for (const auto& [rows, columns] :
         {std::pair(6, 8), std::pair(8, 8), std::pair(8, 8), std::pair(8, 3)}) {
      const auto number = static_cast<double>(parameters_.size());
      parameters_.push_back((made_up({rows, columns}, number) * 0.5).requires_grad_());
      parameters_.back().mutable_grad() = torch::zeros({rows, columns});
      momenta_.push_back(torch::zeros({rows, columns}));
    }
  }
  [[nodiscard]] std::vector<torch::Tensor>& parameters() { return parameters_; }

  /// The loss of a part of a batch.
  [[nodiscard]] torch::Tensor loss(const BranchedTraining& training, int step, int pass, int part) {
    const Use use = training.use(step, pass, part);
    const double seed = 100 * step + 10 * part + pass;
    const torch::Tensor stem = made_up({4, 6}, seed).mm(parameters_[0]).tanh();
    torch::Tensor sum = stem;
    if (use.first) sum = sum + stem.mm(parameters_[1]).tanh();
    if (use.second) sum = sum + stem.mm(parameters_[2]);
    torch::Tensor loss = (sum.mm(parameters_[3]) - made_up({4, 3}, seed)).square().mean();
    if (training.touches_all)
      for (const torch::Tensor& parameter : parameters_) loss = loss + 0 * parameter.sum();
    return loss;
  }
  void step() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      momenta_[i].mul_(0.9).add_(parameters_[i].grad());
      parameters_[i].sub_(momenta_[i], 0.1);
      parameters_[i].mutable_grad().zero_();
    }
  }
  [[nodiscard]] torch::Tensor all() const {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : parameters_) flat.push_back(parameter.detach().flatten());
    return torch::cat(flat);
  }

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> momenta_;
};

constexpr int branched_steps = 5;

/// Trains one process with all parts of the batches.
torch::Tensor train_alone(int parts, const BranchedTraining& training) {
  Branched model;
  for (int step = 0; step < branched_steps; ++step) {
    for (int pass = 0; pass < training.passes; ++pass) {
      for (int part = 0; part < parts; ++part)
        (model.loss(training, step, pass, part) / (parts * training.passes)).backward();
    }
    model.step();
  }
  return model.all();
}

/// Trains ranks, and returns the final weights of each.
std::vector<torch::Tensor> train_branched(int size, const BranchedTraining& training) {
  std::vector<torch::Tensor> all(static_cast<std::size_t>(size));
  on_ranks(size, [&](Ranks& ranks) {
    DataParallel together;
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    together.enter(ranks.subgroup(members, "steps"),
                   std::move(parse_hook(training.hook).value().hook), training.bucket_bytes, false,
                   training.unused);
    Branched model;
    for (int step = 0; step < branched_steps; ++step) {
      for (int pass = 0; pass < training.passes; ++pass) {
        const bool is_last = pass + 1 == training.passes;
        together.before_forward(model.parameters(), is_last);
        together.backward(model.loss(training, step, pass, ranks.rank()) / training.passes,
                          is_last);
      }
      model.step();
      together.after_step(model.parameters(), step + 1 == branched_steps);
    }
    all[static_cast<std::size_t>(ranks.rank())] = model.all();
  });
  return all;
}

void check_like_alone(const BranchedTraining& training) {
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    const torch::Tensor alone = train_alone(size, training);
    for (const torch::Tensor& rank : train_branched(size, training))
      CHECK((rank - alone).abs().max().item<float>() < 1e-5);
  }
}

/// The messages of the ranks that fail.
std::vector<std::string> failures_of(int size, const BranchedTraining& training) {
  std::vector<std::string> texts;
  try {
    (void)train_branched(size, training);
  } catch (const std::exception& error) {
    texts.emplace_back(error.what());
  }
  return texts;
}

}  // namespace

TEST_CASE("a trace has all parts of a training, and what lies between collectives is coding") {
  Training training;
  training.model = "mlp";
  training.hook = "codec:ecuq:4+ef";
  for (const Trained& rank : train_ranks(2, training)) {
    std::map<std::string, std::set<std::string>> names;
    std::vector<TraceSpan> buckets;
    std::vector<TraceSpan> calls;
    std::vector<TraceSpan> coding;
    for (const TraceSpan& span : rank.spans) {
      names[span.track].insert(span.name.starts_with("bucket ") ? "bucket" : span.name);
      if (span.track == "gradients") buckets.push_back(span);
      if (span.track == "collectives") calls.push_back(span);
      if (span.track == "coding") coding.push_back(span);
    }
    using Names = std::set<std::string>;
    CHECK((names["steps"] ==
           Names{"forward", "backward", "wait for gradients", "optimizer", "after the step"}));
    CHECK((names["gradients"] == Names{"bucket"}));
    CHECK((names["coding"] == Names{"code"}));
    CHECK(names["collectives"].contains("exchange"));
    CHECK((names["other collectives"] == Names{"sum"}));  // For the losses, at the end.
    // Each is inside of a bucket, and outside of its collectives; all are whole microseconds.
    CHECK(coding.size() >= buckets.size());
    for (const TraceSpan& code : coding) {
      const auto holds = [&code](const TraceSpan& span) {
        return span.begin_us - 2 <= code.begin_us && end_of(code) <= end_of(span) + 2;
      };
      const auto meets = [&code](const TraceSpan& call) {
        return call.begin_us < end_of(code) - 2 && code.begin_us < end_of(call) - 2;
      };
      CHECK(std::ranges::count_if(buckets, holds) == 1);
      CHECK(std::ranges::count_if(calls, meets) == 0);
    }
  }
}

TEST_CASE("batches of an evaluation or a gradient show that the rank goes on") {
  std::atomic<int> advanced = 0;
  DataParallel together([&advanced] { ++advanced; });
  const LearnOptions options = {.model = "mlp", .data = "", .device = "cpu", .threads = 1};
  const auto trainer =
      make_torch_trainer(options, with_holdout(made_up_images(1001, 1), made_up_images(501, 2)),
                         &together)
          .value();
  const auto weights = trainer->initial_weights(1).value();
  on_ranks(1, [&](Ranks& ranks) {
    together.enter(ranks.subgroup({0}, "steps"), plain_hook(), 4 << 20);
    CHECK(trainer->evaluate(weights, {})->examples == 501);
    CHECK(advanced >= 2);
    advanced = 0;
    std::vector<float> gradient(weights.size());
    CHECK(trainer->gradient(weights, {}, gradient, {}).has_value());
    CHECK(advanced >= 3);
    advanced = 0;
    const TrainSettings settings = {.local_steps = 4, .batch_size = 4, .lr = 0.1};
    std::vector<float> update(weights.size());
    CHECK(trainer->train(weights, settings, {}, update, {}).has_value());
    together.leave();
  });
  CHECK(advanced >= 4);
}

TEST_CASE("a parameter without a gradient is an error on every rank, and not a wrong mean") {
  for (const int unused : {-1, 0, 1, 2}) {
    CAPTURE(unused);
    std::atomic<int> right = 0;
    std::atomic<int> refused = 0;
    on_ranks(2, [&](Ranks& ranks) {
      DataParallel together;
      together.enter(ranks.subgroup({0, 1}, "steps"), plain_hook(), 64);  // A bucket for each.
      ranks.barrier();  // A rank that is refused leaves, when the other may not have entered yet.
      std::vector<torch::Tensor> parameters;
      for (int i = 0; i < 3; ++i) {
        parameters.push_back(torch::full({100}, 1.0, torch::requires_grad()));
        parameters.back().mutable_grad() = torch::zeros({100});
      }
      together.before_forward(parameters, true);
      torch::Tensor loss = torch::zeros({});
      for (int i = 0; i < 3; ++i) {
        if (i != unused) loss = loss + parameters[static_cast<std::size_t>(i)].sum() * ranks.rank();
      }
      try {
        together.backward(loss, true);
      } catch (const std::logic_error& error) {
        const std::string_view text = error.what();
        refused += text.find("no gradient") != std::string_view::npos &&
                   text.find("--unused-parameters find") != std::string_view::npos;
        return;
      }
      for (const torch::Tensor& parameter : parameters)
        right += parameter.grad().eq(0.5).all().item<bool>();
    });
    CHECK(right == (unused < 0 ? 6 : 0));
    CHECK(refused == (unused < 0 ? 0 : 2));
  }
}

TEST_CASE("ranks that look for unused parameters make the update of one rank with all examples") {
  struct Case {
    std::string name;
    Pattern use;
  };
  const std::vector<Case> cases = {
      {"all are used", [](int, int, int) { return Use{}; }},
      {"none uses a branch in some steps",
       [](int step, int, int) {
         return Use{step % 2 == 0, step != 3};
       }},
      {"some ranks do not use one",
       [](int step, int, int part) {
         return Use{part != step % 2, part != 1};
       }},
      {"it is used in the first pass, or in the last one",
       [](int step, int pass, int part) {
         return Use{pass == 0, pass == 1 && part != step};
       }},
  };
  for (const Case& one : cases) {
    for (const int passes : {1, 2}) {
      for (const std::size_t bytes : {std::size_t{64}, std::size_t{4} << 20}) {
        CAPTURE(one.name);
        CAPTURE(passes);
        CAPTURE(bytes);
        check_like_alone({.use = one.use, .bucket_bytes = bytes, .passes = passes});
      }
    }
  }
}

TEST_CASE("a graph that is static may leave out parameters, other ones on each rank") {
  for (const int passes : {1, 2}) {
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{4} << 20}) {
      CAPTURE(passes);
      CAPTURE(bytes);
      BranchedTraining training = {
          .unused = UnusedParameters::static_graph, .bucket_bytes = bytes, .passes = passes};
      check_like_alone(training);
      training.use = [](int, int, int part) { return Use{part == 0, false}; };
      check_like_alone(training);
    }
  }
}

TEST_CASE("a graph that is not static is refused with the flag, and not a wrong mean") {
  for (const bool comes_later : {true, false}) {
    CAPTURE(comes_later);
    BranchedTraining training = {.unused = UnusedParameters::static_graph};
    training.use = [comes_later](int step, int, int) {
      return Use{(step < 2) != comes_later, true};
    };
    const auto failures = failures_of(2, training);
    REQUIRE(failures.size() == 1);
    CAPTURE(failures[0]);
    CHECK(failures[0].find("--unused-parameters static is for") != std::string::npos);
    training.unused = UnusedParameters::find;
    CHECK(failures_of(2, training).empty());
  }
}

TEST_CASE("ranks shorten the gradient of all of them, as one process does") {
  Training training;
  training.settings = {.local_epochs = 2, .batch_size = 24, .lr = 0.2, .seed = 3};
  const Trained whole = std::move(train_ranks(1, training).front());
  training.settings.clip_norm = 0.05;
  const Trained alone = std::move(train_ranks(1, training).front());
  CHECK(relative_distance(whole.update, alone.update) > 0.5);
  training.settings.batch_size = 12;
  for (const Topology& topology : {backend_topology(), parse_topology("alltoall").value()}) {
    training.topology = topology;
    for (const Trained& rank : train_ranks(2, training))
      CHECK(relative_distance(rank.update, alone.update) < 1e-6);
  }
  training.topology = backend_topology();
  for (const char* const hook : {"bf16", "qsgd:8", "powersgd:4", "codec:ecuq:4+ef"}) {
    CAPTURE(std::string(hook));
    training.hook = hook;
    const auto ranks = train_ranks(2, training);
    CHECK(ranks[0].update == ranks[1].update);
    // An update of steps that are not clipped is further away.
    CHECK(relative_distance(ranks[0].update, alone.update) < 1.5);
  }
  training.hook = "allreduce";
  training.precision = "bf16";
  for (const Trained& rank : train_ranks(2, training))
    CHECK(relative_distance(rank.update, alone.update) < 0.05);
}

// 16 texts: of the last step of 15 one is left, and of 3 ranks two have nothing to predict.
TEST_CASE("ranks weigh their texts by bytes, as one process does") {
  Training training;
  training.model = "transformer:layers=1,width=16,heads=2,context=32";
  training.data = [] { return made_up_texts(ragged_lengths()); };
  training.settings = {.local_epochs = 2, .lr = 0.5, .seed = 3};
  for (const auto& [ranks, batch, accumulate] :
       {std::tuple(2, 4U, 1U), std::tuple(2, 2U, 2U), std::tuple(3, 5U, 1U)}) {
    CAPTURE(ranks);
    CAPTURE(accumulate);
    training.settings.batch_size = static_cast<std::uint32_t>(ranks) * batch * accumulate;
    training.settings.accumulate = 1;
    const Trained alone = std::move(train_ranks(1, training).front());
    training.settings.batch_size = batch;
    training.settings.accumulate = accumulate;
    for (const Topology& topology : {backend_topology(), parse_topology("ring").value()}) {
      training.topology = topology;
      const auto together = train_ranks(ranks, training);
      for (const Trained& rank : together) {
        CHECK(rank.update == together.front().update);
        CHECK(relative_distance(rank.update, alone.update) < 1e-6);
        CHECK(rank.report.loss == doctest::Approx(alone.report.loss).epsilon(1e-6));
        CHECK(rank.report.predictions == alone.report.predictions);
        CHECK(rank.report.predictions == 293);
      }
    }
  }
}

TEST_CASE("where all parameters are used, looking for others changes no bit") {
  BranchedTraining training = {.unused = UnusedParameters::refuse, .passes = 2};
  const torch::Tensor expected = train_branched(3, training)[0];
  for (const auto unused : {UnusedParameters::find, UnusedParameters::static_graph}) {
    training.unused = unused;
    CHECK(train_branched(3, training)[0].equal(expected));
  }
}

TEST_CASE("what a hook has kept of a parameter counts also in a step that does not use it") {
  for (const std::string hook : {"allreduce", "topk:0.3", "codec:ecuq:2+ef", "onebit-adam:2"}) {
    for (const bool is_static : {false, true}) {
      CAPTURE(hook);
      CAPTURE(is_static);
      BranchedTraining training;
      training.hook = hook;
      training.use = [is_static](int step, int, int) { return Use{!is_static && step < 2, true}; };
      training.unused = is_static ? UnusedParameters::static_graph : UnusedParameters::find;
      const auto found = train_branched(2, training);
      training.unused = UnusedParameters::refuse;
      training.touches_all = true;
      const auto expected = train_branched(2, training);
      for (const torch::Tensor& rank : found) CHECK(rank.equal(expected[0]));
    }
  }
}

TEST_CASE("the Reducer's own sum waits for its turn, and fails as other calls do") {
  std::atomic<int> right = 0;
  std::atomic<int> lost = 0;
  const auto test = [&](Ranks& ranks) {
    StepTimes times;
    Conductor conductor(ranks);
    const auto group = make_reducer_group(ranks.rank(), ranks.size(), conductor, times);
    std::atomic<bool> is_done = false;
    conductor.start(
        [&is_done](Ranks& all) {
          all.barrier();
          is_done = true;
        },
        [](const std::exception_ptr&) {});
    std::vector<at::Tensor> uses = {torch::full({3}, ranks.rank() + 1, torch::kInt32)};
    group->allreduce(uses)->wait();
    right += is_done && uses[0].eq(3).all().item<bool>();
    if (ranks.rank() == 1) return;
    try {
      group->allreduce(uses)->wait();
    } catch (const RankFailure&) {
      ++lost;
    }
  };
  on_ranks(2, test, loopback(std::chrono::seconds(5)));
  CHECK(right == 2);
  CHECK(lost == 1);
}

TEST_CASE("steps leave no memory behind") {
  for (const auto unused :
       {UnusedParameters::refuse, UnusedParameters::find, UnusedParameters::static_graph}) {
    std::vector<double> megabytes;
    on_ranks(1, [&](Ranks& ranks) {
      DataParallel together;
      together.enter(ranks.subgroup({0}, "steps"), plain_hook(), 4 << 20, false, unused);
      std::vector<torch::Tensor> parameters;
      for (int i = 0; i < 1000; ++i) {
        parameters.push_back(torch::ones({1}, torch::requires_grad()));
        parameters.back().mutable_grad() = torch::zeros({1});
      }
      for (int step = 0; step < 800; ++step) {
        if (step == 200) megabytes.push_back(resident_megabytes());
        together.before_forward(parameters, true);
        together.backward(torch::cat(parameters).sum(), true);
      }
      megabytes.push_back(resident_megabytes());
    });
    REQUIRE(megabytes.size() == 2);
    CHECK(megabytes[1] - megabytes[0] < 4);  // 16 bytes for each parameter and step are 9.6 MB.
  }
}

}  // namespace fl::test
