// SPDX-License-Identifier: Apache-2.0
// What the command line says about a built-in model and its data, and the trainer made of that.
#pragma once

#include "client/learn/trainer.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace fl {

struct LocalData;

/// The options of the command line about model, data and training.
struct LearnOptions {
  std::string model;  // A name for builtin_layout(); the server chooses it.
  std::string data;   // See client/learn/data/readers/readers.cpp; "" for synthetic.
  std::uint64_t data_memory_bytes = 0;  // Inputs beyond this go to the disk; 0: a default.
  bool skip_bad_files = false;          // Leave out files of a folder that can't be read.
  std::string partition = "iid";        // See client/learn/data/partition.hpp.
  std::uint32_t shard = 0;              // Counts from 0: 3/10 on the command line is shard 2 of 10.
  std::uint32_t shards = 1;
  std::uint64_t partition_seed = 0;
  double holdout = 0.1;            // Fraction of the shard that is held out for evaluation.
  bool evaluate_only = false;      // All data is held out; the client does not train.
  std::string device = "auto";     // "cpu", "cuda", "cuda:N", "auto".
  std::string precision = "fp32";  // parse_precision(): of the passes; weights stay fp32.
  bool recomputes = false;         // Activations are computed again in the backward pass.
  /// The optimizer's steps are computed on the host, where its moments are, also if the passes are
  /// on a GPU.
  bool offloads_optimizer = false;
  int threads = 0;  // 0: one per core.
  int hogwild = 1;  // Threads that train the same weights without locks.
  /// The optimizer's moments go on from round to round, in files in `state`.
  bool keep_moments = false;
  std::string state = {};         // The client's folder; used with keep_moments only.
  std::uint64_t client_seed = 0;  // Mixed into shuffles and synthetic updates; one per client.
};

/// What a built-in trainer with these options can do. With moments that are kept, the path of a
/// round's steps does not begin at the round's weights alone, as methods that correct or count
/// steps assume.
[[nodiscard]] inline Trainer::Abilities abilities_of(const LearnOptions& options) {
  Trainer::Abilities can = Trainer::Abilities::all();
  if (options.keep_moments) can.optimizer = can.correction = false;
  return can;
}

/// Makes the trainer for options.model and loads its data (client/learn/models.cpp). An unknown
/// model, unreadable data or a missing device is an error that names it and lists what exists.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options);
/// Makes the trainer with data that was loaded already; options.data, shard and so on are ignored.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options,
                                                            LocalData data);

}  // namespace fl
