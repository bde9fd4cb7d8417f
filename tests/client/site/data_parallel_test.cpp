// SPDX-License-Identifier: Apache-2.0
// Steps that ranks take together: what a trace has of them, how they show that they go on, and
// models whose parameters do not all get a gradient.
#include "tests/client/site/trained_ranks.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <torch/torch.h>
#include <atomic>
#include <map>
#include <set>
#include <string>

namespace fl::test {
namespace {

std::unique_ptr<GradientHook> plain_hook() {
  return std::move(parse_hook("allreduce").value().hook);
}

std::int64_t end_of(const TraceSpan& span) { return span.begin_us + span.duration_us; }

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
    CHECK((names["other collectives"] == Names{"sum"}));  // Of the losses, at the end.
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
  CHECK(trainer->evaluate(weights, {})->examples == 501);
  CHECK(advanced == 2);
  std::vector<float> gradient(weights.size());
  CHECK(trainer->gradient(weights, {}, gradient, {}).has_value());
  CHECK(advanced == 2 + 3);
  on_ranks(1, [&](Ranks& ranks) {
    together.enter(ranks.subgroup({0}, "steps"), plain_hook(), 4 << 20);
    const TrainSettings settings = {.local_steps = 4, .batch_size = 4, .lr = 0.1};
    std::vector<float> update(weights.size());
    CHECK(trainer->train(weights, settings, {}, update, {}).has_value());
    together.leave();
  });
  CHECK(advanced >= 2 + 3 + 4);
}

TEST_CASE("a parameter without a gradient is an error on every rank, and not a wrong mean") {
  for (const int unused : {-1, 0, 1, 2}) {
    CAPTURE(unused);
    std::atomic<int> right = 0;
    std::atomic<int> refused = 0;
    on_ranks(2, [&](Ranks& ranks) {
      DataParallel together;
      together.enter(ranks.subgroup({0, 1}, "steps"), plain_hook(), 64);  // A bucket for each.
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
      together.before_backward(true);
      loss.backward();
      try {
        together.after_backward(true);
      } catch (const std::logic_error& error) {
        refused += std::string_view(error.what()).find("no gradient") != std::string_view::npos;
        return;
      }
      for (const torch::Tensor& parameter : parameters)
        right += parameter.grad().eq(0.5).all().item<bool>();
    });
    CHECK(right == (unused < 0 ? 6 : 0));
    CHECK(refused == (unused < 0 ? 0 : 2));
  }
}

}  // namespace fl::test
