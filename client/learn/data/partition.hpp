// SPDX-License-Identifier: Apache-2.0
// Divides a data set among the parties of a federation. Every party computes the whole partition
// from the labels (or groups) and the seed and takes its own part, so nothing has to be sent. The
// result is the same on every machine. Any thread.
//
//   iid               a random order, cut into equal parts
//   dirichlet:ALPHA   divides each class in proportions drawn from Dir(ALPHA); a small ALPHA makes
//                     uneven parts
//   labels:K          each party holds examples of K classes only
//   by:COLUMN         a natural division: by hospital, by author. As many parties as there are
//   groups
//                     hold one each, in the order of the names; fewer parties hold several
//   file:PARTS.json   a given partition: a JSON array with an array of example numbers for each
//                     party, counted from 0 in the order of the data set
//
// dirichlet and labels are `noniid-labeldir` and `noniid-#labelK` of NIID-Bench: Li, Diao, Chen,
// He, "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, section 4.1.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

struct PartitionRow;

struct PartitionSpec {
  const PartitionRow* row = nullptr;   // A row of partition_rows().
  double alpha = 0;                    // For dirichlet.
  std::uint32_t labels_per_party = 0;  // For labels.
  std::string column{};                // For by.
  std::string file{};                  // For file: its path.
};

/// The examples that are to be divided.
struct PartitionInput {
  std::uint32_t examples = 0;
  std::span<const std::uint32_t> labels = {};  // The label of each example; empty without labels.
  std::uint32_t classes = 0;                   // Labels are less.
  std::span<const std::uint32_t> groups = {};  // The group of each; empty if not asked for.
  std::uint32_t group_count = 0;               // Groups are less; each has an example.
};

inline constexpr double dirichlet_alpha_min = 1e-6;
inline constexpr double dirichlet_alpha_max = 1e6;
inline constexpr std::uint32_t dirichlet_party_examples_min = 10;  // As in NIID-Bench.
inline constexpr int dirichlet_draws_max = 10'000;

/// For each party the indices of the examples that it holds.
using Parts = std::vector<std::vector<std::uint32_t>>;

struct PartitionRow {
  std::string_view usage;  // "labels:K", for help and errors.
  /// Divides as partition() says; `input` has what the row needs.
  Result<Parts> (*divide)(const PartitionSpec& spec, const PartitionInput& input,
                          std::uint32_t parties, std::uint64_t seed);
  /// Reads what stands behind the colon; its error says what that must be. Null: there is none.
  Result<void> (*read)(std::string_view argument, PartitionSpec& spec) = nullptr;
  bool needs_classes = false;
  bool needs_groups = false;

  [[nodiscard]] std::string_view name() const { return usage.substr(0, usage.find(':')); }
};
/// All divisions, in the order in which help shows them.
[[nodiscard]] std::span<const PartitionRow> partition_rows();

/// Parses one of the forms above. Anything else is invalid_input.
[[nodiscard]] Result<PartitionSpec> parse_partition(std::string_view text);

/// Returns for each of `parties` the indices of the examples that it holds. No example is in two
/// parts. Every example is in one, with two exceptions: labels:K drops the examples of a class that
/// no party drew, as NIID-Bench does, and a file may leave out examples. by: gives the largest
/// group first, to the party with the fewest examples so far; of equal ones the first.
/// invalid_input: a party would hold no example (dirichlet: fewer than dirichlet_party_examples_min
/// in each of dirichlet_draws_max draws; by: more parties than groups), the examples have no labels
/// or groups, or the file does not fit.
[[nodiscard]] Result<Parts> partition(const PartitionSpec& spec, const PartitionInput& input,
                                      std::uint32_t parties, std::uint64_t seed);

}  // namespace fl
