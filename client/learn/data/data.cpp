// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/data.hpp"

#include "client/learn/data/idx.hpp"
#include "client/learn/data/partition.hpp"
#include "client/learn/data/random.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <utility>

namespace fl {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view datasets_folder = "/usr/share/datasets";
constexpr std::string_view fashion_mnist = "fashion-mnist";
constexpr std::string_view fashion_mnist_package = "dataset-fashion-mnist";

struct Source {
  fs::path folder;
  bool test = false;
  std::string_view package;  // The Debian package with this data; empty for a user's own folder.
};

Result<Source> parse_source(std::string_view text) {
  constexpr std::string_view test_suffix = ":test";
  constexpr std::string_view idx_prefix = "idx:";
  Source source;
  std::string_view set = text;
  if (set.ends_with(test_suffix)) {
    source.test = true;
    set.remove_suffix(test_suffix.size());
  }
  if (set == fashion_mnist) {
    const char* root = std::getenv("FL_DATA");
    source.folder = fs::path(root != nullptr ? std::string_view(root) : datasets_folder) / set;
    source.package = fashion_mnist_package;
    return source;
  }
  if (set.starts_with(idx_prefix) && set.size() > idx_prefix.size()) {
    source.folder = set.substr(idx_prefix.size());
    return source;
  }
  constexpr std::string_view known = "fashion-mnist, fashion-mnist:test, idx:DIR, idx:DIR:test";
  if (text.empty())
    return Error(Errc::invalid_input,
                 fmt::format("this model needs --data with one of: {}", known));
  return Error(Errc::invalid_input,
               fmt::format("unknown data \"{}\"; use one of: {}", text, known));
}

Result<fs::path> find_file(const Source& source, std::string_view kind) {
  const fs::path plain = source.folder / fmt::format("{}-{}", source.test ? "t10k" : "train", kind);
  const fs::path gzipped = plain.string() + ".gz";
  std::error_code ignored;  // A file that can't be accessed counts as missing.
  if (fs::exists(plain, ignored)) return plain;
  if (fs::exists(gzipped, ignored)) return gzipped;
  std::string advice;
  if (!source.package.empty()) {
    advice =
        fmt::format("; install the Debian package {}, or set FL_DATA to a folder that contains {}/",
                    source.package, source.folder.filename().string());
  }
  return Error(Errc::not_found, fmt::format("found neither {} nor {}.gz{}", plain.string(),
                                            plain.filename().string(), advice));
}

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

Result<void> check(const LearnOptions& options) {
  // Written so that NaN fails too.
  if (!(options.holdout >= 0 && options.holdout < 1)) {
    return Error(Errc::invalid_input,
                 fmt::format("holdout {}: must be at least 0 and less than 1", options.holdout));
  }
  FL_TRY([[maybe_unused]] const PartitionSpec spec, parse_partition(options.partition));
  return {};
}

Result<std::shared_ptr<const DataSet>> read_set(const LearnOptions& options) {
  FL_TRY(const Source source, parse_source(options.data));
  FL_TRY(const fs::path images, find_file(source, "images-idx3-ubyte"));
  FL_TRY(const fs::path labels, find_file(source, "labels-idx1-ubyte"));
  FL_TRY(DataSet set, read_idx(images, labels));
  set.source = options.data;
  return std::make_shared<const DataSet>(std::move(set));
}

Result<std::vector<std::vector<std::uint32_t>>> divide(const DataSet& all,
                                                       const LearnOptions& options) {
  FL_TRY(const PartitionSpec spec, parse_partition(options.partition));
  auto parts = partition(spec, all.labels, all.classes, options.shards, options.partition_seed);
  if (!parts) return parts.error().at(fmt::format("partition of {}", options.data));
  return parts;
}

}  // namespace

Result<LocalData> load_local_data(const LearnOptions& options) {
  FL_CHECK(check(options));
  if (options.shard >= options.shards) {
    return Error(Errc::invalid_input,
                 fmt::format("shard {} of {} does not exist", options.shard + 1, options.shards));
  }
  FL_TRY(auto all, read_set(options));
  if (options.evaluate_only) {
    std::vector<std::uint32_t> whole(all->size());
    std::iota(whole.begin(), whole.end(), 0U);
    return LocalData{.all = std::move(all), .train = {}, .holdout = std::move(whole)};
  }
  FL_TRY(auto parts, divide(*all, options));
  return split(std::move(all), std::move(parts[options.shard]), options.shard, options);
}

Result<std::vector<LocalData>> load_divided_data(const LearnOptions& options) {
  FL_CHECK(check(options));
  FL_TRY(const auto all, read_set(options));
  FL_TRY(auto parts, divide(*all, options));
  std::vector<LocalData> local;
  for (std::uint32_t shard = 0; shard < parts.size(); ++shard)
    local.push_back(split(all, std::move(parts[shard]), shard, options));
  return local;
}

}  // namespace fl
