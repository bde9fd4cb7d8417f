// SPDX-License-Identifier: Apache-2.0
// The trainer of a virtual client. It has no model and no data: for each piece of work it makes a
// real trainer in the thread that does the work. So only the clients at work have models and data
// in memory.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/learn_options.hpp"
#include "examples/sim/attack.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_spec.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace fl::sim {

/// Data and settings that all virtual clients share. Read only; any thread.
struct SharedLearning {
  LearnOptions options;  // The model, one thread, and the number of shards.
  ModelSpec spec;
  Layout layout;
  std::vector<LocalData> data;  // By shard; empty if the model is synthetic.
  /// If not 0, each client trains a random number of epochs in each round, from this to the number
  /// that the server asks for.
  std::uint32_t epochs_from = 0;
  Attack attack = {};
  std::uint32_t malicious = 0;  // The clients of this many first shards attack.
  /// The seed of a shard's training in a round, and that of its shuffles; for omniscient attacks.
  std::function<std::uint64_t(std::uint32_t round, std::uint32_t shard)> task_seed = {};
  std::function<std::uint64_t(std::uint32_t shard)> client_seed = {};
  /// The folder of a shard's client, for its optimizer's state.
  std::function<std::string(std::uint32_t shard)> folder = {};
};

/// Loads the data, once. invalid_input: model and data do not fit each other.
[[nodiscard]] Result<SharedLearning> load_shared_learning(LearnOptions options);

/// Makes the trainer of a client. `shared` must outlive it.
[[nodiscard]] std::unique_ptr<Trainer> make_virtual_trainer(const SharedLearning& shared,
                                                            std::uint32_t shard,
                                                            std::uint64_t client_seed);

}  // namespace fl::sim
