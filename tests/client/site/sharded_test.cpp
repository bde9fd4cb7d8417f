// SPDX-License-Identifier: Apache-2.0
// Ranks that each hold a part of a model (ZeRO stages 1 to 3), against ranks that hold all of it,
// and against one process.
#include "client/learn/torch/units.hpp"
#include "shared/params/model_table.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/client/site/trained_ranks.hpp"
#include "tests/support/some_of.hpp"
#include "tests/support/temporary_folder.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::site;
namespace {

const std::string transformer = "transformer:layers=2,width=16,heads=2,context=32";
const std::string experts = transformer + ",experts=4,aux=0.1,z=0.01";

/// A training whose sums are made in rank order, so that all ways have the same bits.
Training training_of(const std::string& model) {
  Training training;
  training.model = model;
  training.topology = parse_topology("alltoall").value();
  training.settings = {.local_steps = 5, .batch_size = 4, .lr = 0.05, .momentum = 0.9, .seed = 9};
  if (model.starts_with("transformer"))
    training.data = [] { return made_up_texts(ragged_lengths()); };
  return training;
}

}  // namespace

TEST_CASE("parts of a model have the bits of the whole, also when activations are made again") {
  for (const std::string& model : some_of(std::vector<std::string>{
           transformer, experts + ",capacity=1", "resnet8:1x28x28-10", "lenet", "mlp"})) {
    for (const int size : {2, 4}) {
      Training training = training_of(model);
      const auto wanted = train_ranks(size, training);
      for (const int zero : {0, 1, 2, 3}) {
        for (const bool recomputes : {false, true}) {
          CAPTURE(model);
          CAPTURE(size);
          CAPTURE(zero);
          CAPTURE(recomputes);
          training.zero = zero;
          training.recomputes = recomputes;
          const auto ranks = train_ranks(size, training);
          CHECK(joined_update(ranks) == wanted[0].update);
          for (const Trained& rank : ranks) CHECK(rank.report.loss == wanted[0].report.loss);
          if (zero < 2 || size > 2) continue;
          training.prefetches = false;
          CHECK(joined_update(train_ranks(size, training)) == wanted[0].update);
          training.prefetches = true;
        }
      }
    }
  }
}

TEST_CASE("each optimizer steps parts with the bits of the whole") {
  for (const auto kind :
       {LocalOptimizer::Kind::nesterov, LocalOptimizer::Kind::adam, LocalOptimizer::Kind::adamw}) {
    Training training = training_of("lenet");
    training.settings.optimizer.kind = kind;
    training.settings.lr = 0.01;
    training.settings.weight_decay = 0.01;
    training.settings.proximal_mu = 0.1;
    if (!training.settings.optimizer.is_sgd()) training.settings.momentum = 0;
    const auto wanted = train_ranks(2, training);
    for (const int zero : {1, 2, 3}) {
      CAPTURE(std::string(to_string(kind)));
      CAPTURE(zero);
      training.zero = zero;
      CHECK(joined_update(train_ranks(2, training)) == wanted[0].update);
    }
  }
}

TEST_CASE("steps on the host have the bits of steps on a CPU that trains") {
  for (const int zero : {0, 3}) {
    Training training = training_of("lenet");
    training.settings.optimizer.kind = LocalOptimizer::Kind::adamw;
    training.settings.momentum = 0;
    training.zero = zero;
    const auto wanted = train_ranks(2, training);
    training.offloads_optimizer = true;
    const auto ranks = train_ranks(2, training);
    CHECK(joined_update(ranks) == joined_update(wanted));
    CHECK(wanted[0].report.setup == "cpu, fp32");
    CHECK(ranks[0].report.setup == "cpu, fp32, offload optimizer");
  }
}

TEST_CASE("parts of a model train as one process does") {
  for (const std::string& model : std::vector<std::string>{transformer, std::string("lenet")}) {
    for (const int size : {2, 3, 4}) {
      for (const int zero : {1, 3}) {
        CAPTURE(model);
        CAPTURE(size);
        CAPTURE(zero);
        Training training = training_of(model);
        training.settings.momentum = 0;
        training.zero = zero;
        // Batches that leave ranks with unlike numbers of passes, and some without an example.
        training.settings.accumulate = 2;
        training.settings.clip_norm = 0.5;
        training.settings.local_steps = 7;
        CHECK(distance_from_alone(size, training) < 1e-6);
      }
    }
  }
}

TEST_CASE("experts of ranks train as those of one process do, by the tokens of all ranks") {
  // The second set leaves a rank without a text in every second step.
  for (const bool is_small : {false, true}) {
    for (const int size : {2, 3}) {
      for (const int zero : {0, 1, 3}) {
        CAPTURE(is_small);
        CAPTURE(size);
        CAPTURE(zero);
        Training training = training_of(experts);
        training.settings.momentum = 0;
        training.zero = zero;
        if (is_small) {
          training.settings.batch_size = 1;
          training.data = [size] {
            return made_up_texts(
                std::vector<std::uint16_t>(2 * static_cast<std::size_t>(size) - 1, 33));
          };
        }
        CHECK(distance_from_alone(size, training) < 1e-6);
      }
    }
  }
}

TEST_CASE("a batch that is smaller than the group trains parts, too") {
  for (const int zero : {2, 3}) {
    CAPTURE(zero);
    Training training = training_of("resnet8:1x28x28-10");
    training.data = [] { return made_up_images(5, 1); };  // The second batch has one example.
    training.settings = {.local_steps = 4, .batch_size = 1, .lr = 0.05, .seed = 9};
    const auto wanted = train_ranks(4, training);
    training.zero = zero;
    CHECK(joined_update(train_ranks(4, training)) == wanted[0].update);
  }
}

TEST_CASE("ranks whose examples need unlike numbers of passes make the same passes") {
  for (const int zero : {2, 3}) {
    CAPTURE(zero);
    Training training = training_of("lenet");
    training.data = [] { return made_up_images(9, 1); };  // Four for one rank, five for the other.
    training.settings.local_steps = 3;
    training.settings.accumulate = 2;
    const auto wanted = train_ranks(2, training);
    training.zero = zero;
    const auto parts = train_ranks(2, training);
    CHECK(distance(training, joined_update(parts), wanted[0].update) < 1e-6);
  }
}

TEST_CASE("gradients of parts travel in 16 bits and are added up in 32") {
  std::vector<std::vector<float>> updates;
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    Training training = training_of(transformer);
    training.topology = backend_topology();
    training.zero = zero;
    const auto whole = train_ranks(4, training);
    training.hook = "bf16";
    const auto low = train_ranks(4, training);
    updates.push_back(joined_update(low));
    CHECK(updates.back() == updates.front());
    CHECK(updates.back() != joined_update(whole));
    CHECK(relative_distance(updates.back(), joined_update(whole)) < 1e-2);
    CHECK(low[0].gradient_bytes < whole[0].gradient_bytes);
  }
}

TEST_CASE("parts in mixed precision are near those of fp32, and the same when made again") {
  for (const std::string& precision : std::vector<std::string>{"bf16", "fp16", "adaptive:fp16"}) {
    CAPTURE(precision);
    Training training = training_of(transformer);
    training.settings.local_steps = 1;
    training.zero = 3;
    const auto whole = joined_update(train_ranks(2, training));
    training.precision = precision;
    const auto low = joined_update(train_ranks(2, training));
    CHECK(relative_distance(low, whole) < 2e-2);
    training.recomputes = true;
    CHECK(joined_update(train_ranks(2, training)) == low);
    training.zero = 0;
    if (precision != "adaptive:fp16") CHECK(joined_update(train_ranks(2, training)) == low);
  }
}

TEST_CASE("parameters that a mixed pass rounds travel rounded, and no bit changes") {
  for (const std::string& model :
       std::vector<std::string>{transformer, std::string("resnet8:1x28x28-10")}) {
    for (const std::string& precision :
         std::vector<std::string>{"bf16", "adaptive:bf16", "bf16,*fc*=fp16,*conv1*=fp32"}) {
      if (model == transformer && precision.ends_with("conv1*=fp32")) continue;
      CAPTURE(model);
      CAPTURE(precision);
      Training training = training_of(model);
      training.precision = precision;
      const auto wanted = train_ranks(2, training);
      for (const int zero : {2, 3}) {
        CAPTURE(zero);
        training.zero = zero;
        training.precision = "fp32";
        const std::uint64_t in_full = train_ranks(2, training)[0].gradient_bytes;
        training.precision = precision;
        const auto parts = train_ranks(2, training);
        CHECK(joined_update(parts) == wanted[0].update);
        CHECK(parts[0].gradient_bytes < in_full);
      }
    }
  }
}

TEST_CASE("a step that is made again in fp32 uses parameters that were not rounded") {
  Training training = training_of("mlp");
  training.precision = "adaptive:fp16";
  training.settings = {.local_steps = 12, .batch_size = 1, .lr = 1e-4, .seed = 9};
  training.weights_times = 6;
  std::vector<std::vector<float>> updates;
  for (const int zero : {2, 3}) {  // Buffers of stage 2 stay, with what the first pass needed.
    training.zero = zero;
    const auto ranks = train_ranks(2, training);
    CHECK(ranks[0].report.fall_backs.overflows > 0);
    updates.push_back(joined_update(ranks));
  }
  CHECK(updates[0] == updates[1]);
}

TEST_CASE("a rank without an example leaves its statistics as they are") {
  const std::string model = "resnet8:1x28x28-10";
  Training training = training_of(model);
  training.data = [] { return made_up_images(1, 1); };
  training.settings.local_steps = 1;
  training.settings.batch_size = 1;
  const auto alone = train_alone(training, 1);
  const auto statistics = builtin_layout(model).value().statistics();
  REQUIRE(statistics.begin < statistics.end);
  for (const int zero : {0, 2, 3}) {
    CAPTURE(zero);
    training.zero = zero;
    const auto update = joined_update(train_ranks(2, training));
    for (auto i = statistics.begin; i < statistics.end; ++i)
      REQUIRE(update[i] == doctest::Approx(alone[i] / 2).epsilon(1e-4));  // The mean of two ranks.
  }
}

TEST_CASE("fp16 that overflows leaves out the same steps on all parts") {
  Training training = training_of("mlp");
  training.precision = "fp16";
  training.settings = {.local_steps = 12, .batch_size = 1, .lr = 1e-4, .seed = 9};
  training.weights_times = 6;
  const auto wanted = train_ranks(4, training);
  for (const int zero : {1, 3}) {
    CAPTURE(zero);
    training.zero = zero;
    CHECK(joined_update(train_ranks(4, training)) == wanted[0].update);
  }
}

TEST_CASE("a step sends what the formulas say") {
  for (const int size : {2, 4}) {
    Training training = training_of(transformer);
    const auto module = make_module(transformer).value();
    const Units units(module, parse_model(transformer).value());
    const auto sent = [&](std::int64_t parameters) {
      return static_cast<std::uint64_t>((parameters + size - 1) / size * (size - 1) * 4);
    };
    std::uint64_t all = 0;
    std::uint64_t twice = 0;  // Units that are gathered for the backward pass, too.
    for (std::size_t unit = 0; unit < units.units().size(); ++unit) {
      all += sent(units.units()[unit].count);
      const bool stays = unit == 0 || unit + 1 == units.units().size();
      if (!stays) twice += sent(units.units()[unit].count);
    }
    for (const int zero : {1, 2, 3}) {
      for (const std::uint32_t passes : {1U, 2U}) {
        CAPTURE(size);
        CAPTURE(zero);
        CAPTURE(passes);
        training.zero = zero;
        training.settings.batch_size = 4 / passes;
        training.settings.accumulate = passes;
        training.data = [] { return made_up_texts(std::vector<std::uint16_t>(32, 33)); };
        const std::uint64_t gradients = zero == 1 ? all : passes * all;
        const std::uint64_t weights = zero == 3 ? passes * (all + twice) : all;
        for (const Trained& rank : train_ranks(size, training)) {
          CHECK(rank.report.steps == 5);
          CHECK(rank.gradient_bytes == 5 * (gradients + weights));
        }
      }
    }
  }
}

TEST_CASE("a trace shows how parts come together and gradients go, and the times add up") {
  Training training = training_of(transformer);
  training.zero = 3;
  const auto module = make_module(transformer).value();
  const std::size_t units = Units(module, parse_model(transformer).value()).units().size();
  for (const Trained& rank : train_ranks(2, training)) {
    std::map<std::string, std::size_t> counts;
    double waiting_us = 0;
    double reducing_us = 0;
    for (const TraceSpan& span : rank.spans) {
      ++counts[span.name];
      const auto duration = static_cast<double>(span.duration_us);
      if (span.name.starts_with("wait for ") || span.name == "after the step")
        waiting_us += duration;
      if (span.name.starts_with("gather ") || span.name.starts_with("bucket "))
        reducing_us += duration;
    }
    const std::size_t steps = rank.report.steps;
    for (std::size_t unit = 0; unit < units; ++unit) {
      CAPTURE(unit);
      const bool stays = unit == 0 || unit + 1 == units;
      CHECK(counts[fmt::format("gather {}", unit)] == (stays ? 1 : 2) * steps);
      CHECK(counts[fmt::format("bucket {}", unit)] == steps);
    }
    // A pass waits at most once for each gather, and for gradients at most once for each unit.
    CHECK(counts["wait for parameters"] > 0);
    CHECK(counts["wait for parameters"] <= (2 * units - 2) * steps);
    const SyncTimes times = rank.times;
    const double rounding_us = static_cast<double>(rank.spans.size());
    CHECK(std::abs(times.exposed * 1e6 - waiting_us) <= rounding_us);
    CHECK(times.hidden * 1e6 <= reducing_us + rounding_us);
    CHECK(times.exposed * 1e6 + times.hidden * 1e6 >= reducing_us - rounding_us);
    CHECK(times.compute > 0);
  }
}

TEST_CASE("all ranks evaluate and make a gradient, with what one process finds") {
  for (const std::string& model : std::vector<std::string>{
           transformer, experts, std::string("lenet"), std::string("mlp:784-8-2")}) {
    Training training = training_of(model);
    if (!model.starts_with("transformer")) {
      training.data = [&model] {
        DataSet set = made_up_images(1400, 1);
        if (model == "mlp:784-8-2")
          for (std::uint32_t& label : set.labels) label %= 2;  // Two classes have an AUROC.
        if (model == "mlp:784-8-2") set.classes = 2;
        return set;
      };
      training.holdout = 1200;  // Three batches, which two or four ranks share.
    } else {
      training.holdout = 6;
    }
    const auto alone = make_ranks_trainer(training, nullptr);
    const auto weights = first_weights(*alone, training);
    const auto wanted = alone->evaluate(weights, {}).value();
    std::vector<float> wanted_gradient(weights.size());
    REQUIRE(alone->gradient(weights, training.settings, wanted_gradient, {}).has_value());
    for (const int size : {2, 4}) {
      for (const int zero : {0, 1, 3}) {
        CAPTURE(model);
        CAPTURE(size);
        CAPTURE(zero);
        training.zero = zero;
        std::vector<EvalReport> reports(static_cast<std::size_t>(size));
        std::vector<float> gradient(weights.size());
        on_ranks(size, [&](Ranks& ranks) {
          const auto together = enter_parallel(ranks, training);
          const auto trainer = make_ranks_trainer(training, together.get());
          reports[static_cast<std::size_t>(ranks.rank())] = trainer->evaluate(weights, {}).value();
          const bool writes = zero > 0 || ranks.rank() == 0;
          trainer
              ->gradient(weights, training.settings,
                         writes ? std::span<float>(gradient) : std::span<float>(), {})
              .value();
        });
        for (const EvalReport& report : reports) {
          CHECK(report.examples == wanted.examples);
          CHECK(report.loss == doctest::Approx(wanted.loss).epsilon(1e-6));
          REQUIRE(report.metrics.size() == wanted.metrics.size());
          for (std::size_t i = 0; i < report.metrics.size(); ++i)
            CHECK(report.metrics[i].value ==
                  doctest::Approx(wanted.metrics[i].value).epsilon(1e-6));
        }
        CHECK(relative_distance(gradient, wanted_gradient) < 5e-6);
      }
    }
  }
}

TEST_CASE("a trainer goes on in a group of another size, and after a rank has left in a pass") {
  for (const int zero : {1, 2, 3}) {
    CAPTURE(zero);
    Training training = training_of("lenet");
    training.zero = zero;
    std::vector<std::vector<float>> updates(3);
    on_ranks(3, [&](Ranks& ranks) {
      auto together = enter_parallel(ranks, training);
      const auto trainer = make_ranks_trainer(training, together.get());
      const auto weights = first_weights(*trainer, training);
      std::vector<float>& update = updates[static_cast<std::size_t>(ranks.rank())];
      update.resize(weights.size());
      std::stop_source stop;
      if (ranks.rank() == 2) stop.request_stop();
      const auto failed = trainer->train(weights, training.settings, {}, update, stop.get_token());
      together->leave();
      if (failed) throw std::runtime_error("a rank is missing, and the others did not notice");
      if (ranks.rank() == 2) return;
      std::ranges::fill(update, 0.0F);
      auto again = ranks.subgroup({0, 1}, "again");
      if (auto* const sharded = dynamic_cast<ShardedParallel*>(together.get())) {
        sharded->enter(std::move(again));
      } else {
        dynamic_cast<DataParallel&>(*together).enter(
            std::move(again), make_topology_mean(training.topology, Nodes{std::vector<int>(2)}),
            training.bucket_bytes);
      }
      trainer->train(weights, training.settings, {}, update, {}).value();
    });
    training.zero = 0;
    const auto wanted = train_ranks(2, training);
    std::vector<Trained> parts(2);
    for (std::size_t rank = 0; rank < 2; ++rank) parts[rank].update = updates[rank];
    CHECK(joined_update(parts) == wanted[0].update);
  }
}

TEST_CASE("moments of parts go on from round to round, also for another number of ranks") {
  std::vector<std::vector<float>> updates;
  for (const int zero : {0, 1, 3}) {
    const TemporaryFolder folder;
    Training training = training_of("lenet");
    training.zero = zero;
    training.state = folder.path().string();
    training.settings.optimizer.kind = LocalOptimizer::Kind::adam;
    training.settings.momentum = 0;
    training.settings.lr = 0.01;
    training.settings.round = 1;
    CHECK_FALSE(joined_update(train_ranks(2, training)).empty());
    training.settings.round = 2;
    updates.push_back(joined_update(train_ranks(2, training)));
    training.settings.round = 3;
    updates.push_back(joined_update(train_ranks(3, training)));
  }
  for (std::size_t i = 2; i < updates.size(); ++i) CHECK(updates[i] == updates[i % 2]);
  CHECK(updates[0] != updates[1]);
}

TEST_CASE("ranks whose hook needs whole gradients step parts with the bits of the whole") {
  for (const std::string& hook : std::vector<std::string>{"topk:0.3", "codec:ecuq:4+ef"}) {
    CAPTURE(hook);
    Training training = training_of("lenet");
    training.topology = backend_topology();
    training.hook = hook;
    training.settings.clip_norm = 0.5;
    const auto wanted = train_ranks(2, training);
    training.zero = 1;
    CHECK(joined_update(train_ranks(2, training)) == wanted[0].update);
  }
}

TEST_CASE("flags that don't go with parts are refused with the reason") {
  const auto refused = [](const ParallelSettings& settings) {
    const auto made = make_parallel(settings, [] {});
    return made ? std::string() : made.error().message();
  };
  for (const std::string& hook :
       std::vector<std::string>{"allreduce", "bf16", "fp16", "bf16+allreduce"}) {
    CAPTURE(hook);
    for (int zero = 0; zero <= 3; ++zero) CHECK(refused({.hook = hook, .zero = zero}).empty());
  }
  const auto holds_parts = [](const ParallelSettings& settings) {
    const auto made = make_parallel(settings, [] {}).value();
    return dynamic_cast<const ShardedParallel*>(made.get()) != nullptr;
  };
  CHECK(holds_parts({.zero = 1}));
  CHECK(holds_parts({.hook = "bf16", .zero = 1}));
  CHECK(holds_parts({.topology = "alltoall", .zero = 1}));
  CHECK(holds_parts({.ep = 2}));
  for (const ParallelSettings& whole :
       {ParallelSettings{.hook = "codec:ecuq:2+ef", .zero = 1},
        ParallelSettings{.topology = "ring", .zero = 1},
        ParallelSettings{.bucket_mb = "8", .zero = 1},
        ParallelSettings{.unused_parameters = "find", .zero = 1}, ParallelSettings{}})
    CHECK_FALSE(holds_parts(whole));
  for (const auto& row :
       {std::pair(ParallelSettings{.hook = "codec:ecuq:2+ef", .zero = 2},
                  "--zero 2 does not go with --hook codec:ecuq:2+ef: each rank gets a part"),
        std::pair(ParallelSettings{.hook = "post-local-sgd:2", .zero = 1},
                  "--zero 1 does not go with --hook post-local-sgd:2: its ranks have parameters"),
        std::pair(ParallelSettings{.topology = "ring", .zero = 3},
                  "--zero 3 does not go with --topology ring"),
        std::pair(ParallelSettings{.unused_parameters = "find", .zero = 3},
                  "--zero 3 does not go with --unused-parameters find"),
        std::pair(ParallelSettings{.bucket_mb = "8", .zero = 2},
                  "--zero 2 does not go with --bucket-mb 8"),
        std::pair(ParallelSettings{.unused_parameters = "find", .pp = 2},
                  "--unused-parameters find does not go with --parallel pp=2"),
        std::pair(ParallelSettings{.hook = "codec:ecuq:2+ef", .ep = 2},
                  "--parallel ep=2 does not go with --hook codec:ecuq:2+ef: each rank gets a part"),
        std::pair(ParallelSettings{.hook = "post-local-sgd:2", .ep = 2},
                  "--parallel ep=2 does not go with --hook post-local-sgd:2"),
        std::pair(ParallelSettings{.topology = "ring", .ep = 2},
                  "--parallel ep=2 does not go with --topology ring"),
        std::pair(ParallelSettings{.ep = 2, .expert_parallel = "hops"}, "'hops' is neither"),
        std::pair(ParallelSettings{.zero = 2, .pp = 2, .pipeline = "zb-h1"},
                  "--zero 2 does not go with --pipeline zb-h1")}) {
    CHECK(refused(row.first).starts_with(row.second));
  }
}

}  // namespace fl::test
