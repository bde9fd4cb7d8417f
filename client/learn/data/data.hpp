// SPDX-License-Identifier: Apache-2.0
// The examples of a client: which files, which shard of them, and which part of that is held out.
// fl-client reads its shard once, at start-up; fl-sim reads a data set once for all its clients.
// Any thread.
#pragma once

#include "client/learn/data/idx.hpp"
#include "client/learn/trainer.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr std::uint32_t image_classes = 10;  // The classes of every built-in model.

struct LocalData {
  ImageSet train;
  ImageSet holdout;
};

/// Loads the data that options.data, partition, shard, shards, partition_seed, holdout and
/// evaluate_only describe. options.data is one of:
///
///   fashion-mnist, fashion-mnist:test   files in /usr/share/datasets/fashion-mnist, from the
///   Debian
///                                       package dataset-fashion-mnist; the environment variable
///                                       FL_DATA replaces /usr/share/datasets
///   idx:DIR, idx:DIR:test               the four files of MNIST in DIR, each with or without .gz
///
/// The shard is put in a random order that depends on partition_seed and shard; the last `holdout`
/// (a fraction) of it is the held-out part. With evaluate_only the whole data set is held out and
/// the partition is ignored. Errors: invalid_input, which names the option, and those of
/// read_idx().
[[nodiscard]] Result<LocalData> load_local_data(const LearnOptions& options);

/// A whole data set, and the examples of each shard.
struct DividedData {
  struct Part {
    std::vector<std::uint32_t> train;  // Indices into `all`.
    std::vector<std::uint32_t> holdout;
  };
  ImageSet all;
  std::vector<Part> parts;  // By shard.

  /// The same data that load_local_data() returns for this shard.
  [[nodiscard]] LocalData local(std::uint32_t shard) const;
};

/// Loads a whole data set and its partition; ignores options.shard and evaluate_only.
[[nodiscard]] Result<DividedData> load_divided_data(const LearnOptions& options);

}  // namespace fl
