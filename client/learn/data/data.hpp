// The examples that one client works with: which files, which part of them, and what of that part
// is held out. Read once at start-up; any thread. fl-sim reads a set once for all its clients.
#pragma once

#include "client/learn/data/idx.hpp"
#include "client/learn/trainer.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr std::uint32_t image_classes = 10;  // What every built-in model tells apart.

struct LocalData {
  ImageSet train;
  ImageSet holdout;
};

/// What options.data, partition, shard, shards, partition_seed, holdout and evaluate_only say:
///
///   fashion-mnist, fashion-mnist:test   /usr/share/datasets/fashion-mnist, of the Debian package
///                                       dataset-fashion-mnist; FL_DATA names another folder for
///                                       /usr/share/datasets
///   idx:DIR, idx:DIR:test               the four files of MNIST in DIR, each with or without .gz
///
/// The held-out part is the last `holdout` of the shard in a random order that depends on
/// partition_seed and shard. With evaluate_only all data of the set is held out, whatever the
/// partition says. Errors: invalid_input naming the option, and those of read_idx.
[[nodiscard]] Result<LocalData> load_local_data(const LearnOptions& options);

/// A whole set, and which of its examples each shard has.
struct DividedData {
  struct Part {
    std::vector<std::uint32_t> train;  // Indices into `all`.
    std::vector<std::uint32_t> holdout;
  };
  ImageSet all;
  std::vector<Part> parts;  // By shard.

  /// What load_local_data() gives for that shard.
  [[nodiscard]] LocalData local(std::uint32_t shard) const;
};

/// options.shard and evaluate_only do not matter; the rest is as above.
[[nodiscard]] Result<DividedData> load_divided_data(const LearnOptions& options);

}  // namespace fl
