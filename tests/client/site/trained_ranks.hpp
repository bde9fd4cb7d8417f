// SPDX-License-Identifier: Apache-2.0
// A training by several ranks, as threads or processes: the real trainer, hooks and buckets.
// Include this before doctest: libtorch and doctest both define CHECK.
#pragma once

#include "client/learn/torch/torch_trainer.hpp"
#include "client/site/rank/data_parallel.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "client/site/rank/topology_hooks.hpp"
#include "tests/client/learn/made_up_images.hpp"
#include "tests/client/site/rank_threads.hpp"

#include <algorithm>
#include <functional>
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
  std::function<DataSet()> data = [] { return made_up_images(96, 1); };
};

/// A rank's state in the end.
struct Trained {
  std::vector<float> update;
  TrainReport report;
  std::uint64_t gradient_bytes = 0;
  std::vector<TraceSpan> spans;
  std::size_t buckets = 0;  // Buckets that were reduced.
};

/// Trains this rank, while all others do likewise. Throws if it fails.
inline Trained train_rank(Ranks& ranks, const Training& training) {
  Trained mine;
  DataParallel together;
  const LearnOptions options = {.model = training.model,
                                .data = "",
                                .device = "cpu",
                                .precision = training.precision,
                                .threads = 1};
  auto trainer = make_torch_trainer(options, to_train_on(training.data()), &together);
  if (!trainer) throw std::runtime_error(trainer.error().message());
  auto parsed = parse_hook(training.hook);
  if (!parsed) throw std::runtime_error(parsed.error().message());
  const bool is_local = parsed->row.is_local;
  std::vector<int> members(static_cast<std::size_t>(ranks.size()));
  auto hook = training.topology == backend_topology()
                  ? std::move(parsed->hook)
                  : make_topology_mean(training.topology, Nodes{members});
  std::iota(members.begin(), members.end(), 0);
  together.enter(ranks.subgroup(members, "steps"), std::move(hook), training.bucket_bytes,
                 is_local);
  together.times().begin_round(true);
  auto weights = (*trainer)->initial_weights(3).value();
  for (float& weight : weights) weight *= training.weights_times;
  mine.update.resize(weights.size());
  const auto report = (*trainer)->train(weights, training.settings, {}, mine.update, {});
  if (!report) throw std::runtime_error(report.error().message());
  mine.report = *report;
  mine.gradient_bytes = together.gradient_bytes();
  mine.spans = together.times().take_spans();
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

}  // namespace fl::test
