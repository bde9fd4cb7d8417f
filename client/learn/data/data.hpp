// SPDX-License-Identifier: Apache-2.0
// The examples of a client: which files, which shard of them, and which part of that is held out.
// fl-client reads its shard once, at start-up; fl-sim reads a data set once for all its clients.
// Any thread.
#pragma once

#include "client/learn/data/dataset.hpp"
#include "client/learn/learn_options.hpp"

#include <memory>
#include <vector>

namespace fl {

/// A client's part of a data set: indices into it.
struct LocalData {
  std::shared_ptr<const DataSet> all;  // Null without data.
  std::vector<std::uint32_t> train;
  std::vector<std::uint32_t> holdout;
};

/// Loads the data that options.data, data_memory_bytes, partition, shard, shards, partition_seed,
/// holdout and evaluate_only describe. Which texts options.data may have:
/// client/learn/data/readers/readers.cpp.
///
/// The shard is put in a random order that depends on partition_seed and shard; the last `holdout`
/// (a fraction) of it is the held-out part. With evaluate_only the whole data set is held out and
/// the partition is ignored. Errors: invalid_input, which names the option, and those of
/// read_data().
[[nodiscard]] Result<LocalData> load_local_data(const LearnOptions& options);

/// Loads a whole data set and returns the part of each shard, which is what load_local_data()
/// returns for it. Ignores options.shard and evaluate_only.
[[nodiscard]] Result<std::vector<LocalData>> load_divided_data(const LearnOptions& options);

/// Loads all examples that options.data describes, for a model to predict what they lack: labels
/// and targets are not read, and may be missing. All are in the held-out part. Ignores the
/// partition.
[[nodiscard]] Result<LocalData> load_data_to_predict(const LearnOptions& options);

}  // namespace fl
