// SPDX-License-Identifier: Apache-2.0
// A training by several ranks, as threads or processes: the real trainer, hooks and buckets.
// Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "client/learn/torch/torch_trainer.hpp"
#include "client/site/rank/data_parallel.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/shards/sharded_parallel.hpp"
#include "client/site/rank/topology_hooks.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/client/learn/made_up_texts.hpp"
#include "tests/client/site/rank_threads.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::site;

struct Training {
  std::string model = "lenet";
  std::string precision = "fp32";
  std::string hook = "allreduce";
  Topology topology = backend_topology();
  std::size_t bucket_bytes = 4 << 20;
  TrainSettings settings = {.local_steps = 6, .batch_size = 4, .lr = 0.05, .seed = 9};
  float weights_times = 1;  // The initial weights are made so much larger.
  int zero = 0;             // The stage of ZeRO.
  int tp = 1;               // Ranks that have layers together.
  bool divides_tokens = false;
  ContextDivision texts = {};
  PipelineDivision stages = {};
  ExpertDivision experts = {};
  bool recomputes = false;
  bool prefetches = true;
  bool offloads_optimizer = false;
  std::uint32_t holdout = 0;  // Examples that are held out.
  std::string state = {};     // The folder of moments that are kept; "": none are.
  std::function<DataSet()> data = [] { return made_up_images(96, 1); };
};

/// A rank's state in the end.
struct Trained {
  std::vector<float> update;
  TrainReport report;
  std::uint64_t gradient_bytes = 0;
  SyncTimes times;
  std::vector<TraceSpan> spans;
  std::size_t buckets = 0;  // Buckets that were reduced.
};

/// The group of these ranks, in the way that the training says. Throws if that fails.
inline std::unique_ptr<Parallel> enter_parallel(
    Ranks& ranks, const Training& training, const std::function<void()>& on_progress = [] {}) {
  auto parsed = parse_hook(training.hook);
  if (!parsed) throw std::runtime_error(parsed.error().message());
  std::vector<int> all(static_cast<std::size_t>(ranks.size()));
  std::iota(all.begin(), all.end(), 0);
  auto steps = ranks.subgroup(all, "steps");
  const auto format = parsed->hook->plain_format();
  const PassDivision division{
      .layers = {.ranks = training.tp, .divides_tokens = training.divides_tokens},
      .texts = training.texts,
      .stages = training.stages,
      .experts = training.experts};
  if ((training.zero >= 1 || training.experts.ranks > 1) && format) {
    auto together = std::make_unique<ShardedParallel>(
        on_progress,
        ShardedParallel::Options{.frees_parameters = training.zero == 3,
                                 .keeps_gradients = training.zero <= 1,
                                 .prefetches = training.prefetches},
        division);
    together->enter(std::move(steps), *format);
    return together;
  }
  const bool is_local = parsed->row.is_local;
  auto hook = training.topology == backend_topology()
                  ? std::move(parsed->hook)
                  : make_topology_mean(training.topology, Nodes{std::vector<int>(all.size())});
  auto together = std::make_unique<DataParallel>(on_progress, training.zero == 1, division);
  together->enter(std::move(steps), std::move(hook), training.bucket_bytes, is_local);
  return together;
}

inline std::unique_ptr<Trainer> make_ranks_trainer(const Training& training, StepSync* together) {
  const LearnOptions options = {.model = training.model,
                                .data = "",
                                .device = "cpu",
                                .precision = training.precision,
                                .recomputes = training.recomputes,
                                .offloads_optimizer = training.offloads_optimizer,
                                .threads = 1,
                                .keep_moments = !training.state.empty(),
                                .state = training.state};
  auto trainer = make_torch_trainer(options, local(training.data(), training.holdout), together);
  if (!trainer) throw std::runtime_error(trainer.error().message());
  return std::move(*trainer);
}

inline std::vector<float> first_weights(const Trainer& trainer, const Training& training) {
  auto weights = trainer.initial_weights(3).value();
  for (float& weight : weights) weight *= training.weights_times;
  return weights;
}

/// Trains this rank, while all others do likewise. Throws if it fails.
inline Trained train_rank(Ranks& ranks, const Training& training) {
  Trained mine;
  const auto together = enter_parallel(ranks, training);
  const auto trainer = make_ranks_trainer(training, together.get());
  together->times().begin_round(true);
  const auto weights = first_weights(*trainer, training);
  mine.update.resize(weights.size());
  const auto report = trainer->train(weights, training.settings, {}, mine.update, {});
  if (!report) throw std::runtime_error(report.error().message());
  mine.report = *report;
  mine.gradient_bytes = together->gradient_bytes();
  mine.times = together->times().sums();
  mine.spans = together->times().take_spans();
  for (const TraceSpan& span : mine.spans) mine.buckets += span.name.starts_with("bucket ") ? 1 : 0;
  return mine;
}

/// The ranks, in their order. Throws if a rank fails.
inline std::vector<Trained> train_ranks(int size, const Training& training) {
  std::vector<Trained> all(static_cast<std::size_t>(size));
  on_ranks(size, [&](Ranks& ranks) {
    all[static_cast<std::size_t>(ranks.rank())] = train_rank(ranks, training);
  });
  return all;
}

/// The update of ranks that each write a part of it, or all.
inline std::vector<float> joined_update(const std::vector<Trained>& ranks) {
  std::vector<float> all = ranks.front().update;
  for (const Trained& rank : ranks)
    for (std::size_t i = 0; i < all.size(); ++i)
      if (rank.update[i] != 0) all[i] = rank.update[i];
  return all;
}

/// The distance of the weights that two updates make, relative to their length.
inline double distance(const Training& training, const std::vector<float>& update,
                       const std::vector<float>& wanted) {
  const auto initial = first_weights(*make_ranks_trainer(training, nullptr), training);
  std::vector<float> a = initial;
  std::vector<float> b = initial;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    a[i] += update[i];
    b[i] += wanted[i];
  }
  return relative_distance(a, b);
}

/// Trains one process with the batches of so many ranks that take parts of them.
inline std::vector<float> train_alone(Training training, std::uint32_t size) {
  training.settings.batch_size *= size;
  const auto trainer = make_ranks_trainer(training, nullptr);
  const auto weights = first_weights(*trainer, training);
  std::vector<float> update(weights.size());
  if (const auto done = trainer->train(weights, training.settings, {}, update, {}); !done)
    throw std::runtime_error(done.error().message());
  return update;
}

/// How far what ranks make of the weights is from what one process does.
inline double distance_from_alone(int size, const Training& training) {
  const auto together = training.tp * training.texts.ranks * training.stages.ranks;
  return distance(training, joined_update(train_ranks(size, training)),
                  train_alone(training, static_cast<std::uint32_t>(size / together)));
}

}  // namespace fl::test
