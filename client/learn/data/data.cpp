// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/data.hpp"

#include "client/learn/data/partition.hpp"
#include "client/learn/data/random.hpp"
#include "client/learn/data/readers/readers.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace fl {

namespace {

LocalData split(std::shared_ptr<const DataSet> all, std::vector<std::uint32_t> order,
                std::uint32_t shard, const LearnOptions& options) {
  // Another seed than the partition's, so the two random sequences are independent.
  Random(mix_seeds(options.partition_seed, shard), 0).shuffle(order);
  const auto held = static_cast<std::size_t>(options.holdout * static_cast<double>(order.size()));
  LocalData part{.all = std::move(all), .train = {}, .holdout = {}};
  part.holdout.assign(order.end() - static_cast<std::ptrdiff_t>(held), order.end());
  order.resize(order.size() - held);
  part.train = std::move(order);
  return part;
}

Result<PartitionSpec> check(const LearnOptions& options) {
  // Written so that NaN fails too.
  if (!(options.holdout >= 0 && options.holdout < 1)) {
    return Error(Errc::invalid_input,
                 fmt::format("holdout {}: must be at least 0 and less than 1", options.holdout));
  }
  return parse_partition(options.partition);
}

Result<std::shared_ptr<const DataSet>> read_set(const LearnOptions& options,
                                                const PartitionSpec& spec) {
  FL_TRY(DataSet set, read_data({.text = options.data,
                                 .group = spec.column,
                                 .memory_bytes = options.data_memory_bytes,
                                 .skip_bad_files = options.skip_bad_files}));
  return std::make_shared<const DataSet>(std::move(set));
}

LocalData all_held_out(std::shared_ptr<const DataSet> all) {
  std::vector<std::uint32_t> whole(all->size());
  std::iota(whole.begin(), whole.end(), 0U);
  return {.all = std::move(all), .train = {}, .holdout = std::move(whole)};
}

Result<std::vector<std::vector<std::uint32_t>>> divide(const DataSet& all,
                                                       const PartitionSpec& spec,
                                                       const LearnOptions& options) {
  auto parts = partition(spec,
                         {.examples = all.size(),
                          .labels = all.labels,
                          .classes = all.classes,
                          .groups = all.groups,
                          .group_count = static_cast<std::uint32_t>(all.group_names.size())},
                         options.shards, options.partition_seed);
  if (!parts) return parts.error().at(fmt::format("partition of {}", options.data));
  return parts;
}

}  // namespace

Result<LocalData> load_local_data(const LearnOptions& options) {
  FL_TRY(const PartitionSpec spec, check(options));
  if (options.shard >= options.shards) {
    return Error(Errc::invalid_input,
                 fmt::format("shard {} of {} does not exist", options.shard + 1, options.shards));
  }
  FL_TRY(auto all, read_set(options, spec));
  if (options.evaluate_only) return all_held_out(std::move(all));
  FL_TRY(auto parts, divide(*all, spec, options));
  return split(std::move(all), std::move(parts[options.shard]), options.shard, options);
}

Result<LocalData> load_data_to_predict(const LearnOptions& options) {
  FL_TRY(DataSet set, read_data({.text = options.data,
                                 .memory_bytes = options.data_memory_bytes,
                                 .skip_bad_files = options.skip_bad_files,
                                 .to_predict = true}));
  return all_held_out(std::make_shared<const DataSet>(std::move(set)));
}

Result<std::vector<LocalData>> load_divided_data(const LearnOptions& options) {
  FL_TRY(const PartitionSpec spec, check(options));
  FL_TRY(const auto all, read_set(options, spec));
  FL_TRY(auto parts, divide(*all, spec, options));
  std::vector<LocalData> local;
  for (std::uint32_t shard = 0; shard < parts.size(); ++shard)
    local.push_back(split(all, std::move(parts[shard]), shard, options));
  return local;
}

}  // namespace fl
