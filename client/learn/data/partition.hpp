// SPDX-License-Identifier: Apache-2.0
// Divides a data set among the parties of a federation. Every party computes the whole partition
// from the labels and the seed and takes its own part, so nothing has to be sent. The result is the
// same on every machine. Any thread.
//
//   iid               a random order, cut into equal parts
//   dirichlet:ALPHA   divides each class in proportions drawn from Dir(ALPHA); a small ALPHA makes
//                     uneven parts
//   labels:K          each party holds examples of K classes only
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

struct PartitionSpec {
  enum class Kind { iid, dirichlet, labels, file };
  Kind kind = Kind::iid;
  double alpha = 0;                    // For Kind::dirichlet.
  std::uint32_t labels_per_party = 0;  // For Kind::labels.
  std::string file{};                  // For Kind::file: its path.
};

inline constexpr double dirichlet_alpha_min = 1e-6;
inline constexpr double dirichlet_alpha_max = 1e6;
inline constexpr std::uint32_t dirichlet_party_examples_min = 10;  // As in NIID-Bench.
inline constexpr int dirichlet_draws_max = 10'000;

/// Parses one of the forms above. Anything else is invalid_input.
[[nodiscard]] Result<PartitionSpec> parse_partition(std::string_view text);

/// Returns for each of `parties` the indices into `labels` that it holds. No example is in two
/// parts. Every example is in one, with two exceptions: labels:K drops the examples of a class that
/// no party drew, as NIID-Bench does, and a file may leave out examples. Every label must be
/// < `classes`. invalid_input: a party would hold no example (dirichlet: fewer than
/// dirichlet_party_examples_min in each of dirichlet_draws_max draws), or the file does not fit.
[[nodiscard]] Result<std::vector<std::vector<std::uint32_t>>> partition(
    const PartitionSpec& spec, std::span<const std::uint32_t> labels, std::uint32_t classes,
    std::uint32_t parties, std::uint64_t seed);

}  // namespace fl
