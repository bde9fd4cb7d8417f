// Which examples each party of a federation holds. Every party computes the whole partition from
// the labels and the seed and takes its own part, so nothing needs to be sent. The same on every
// machine; any thread.
//
//   iid               a random order, cut into equal parts
//   dirichlet:ALPHA   each class is divided in proportions drawn from Dir(ALPHA); small: uneven
//   labels:K          each party holds K classes only
//   file:PARTS.json   as someone else has divided them: an array with an array for each party, of
//                     the numbers of its examples, from 0 in the order of the data set
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
  double alpha = 0;                    // Of dirichlet.
  std::uint32_t labels_per_party = 0;  // Of labels.
  std::string file{};                  // Of file.
};

inline constexpr double dirichlet_alpha_min = 1e-6;
inline constexpr double dirichlet_alpha_max = 1e6;
inline constexpr std::uint32_t dirichlet_party_examples_min = 10;  // As in NIID-Bench.
inline constexpr int dirichlet_draws_max = 10'000;

[[nodiscard]] Result<PartitionSpec> parse_partition(std::string_view text);

/// For each of `parties` the indices into `labels` that it holds. No example is in two parts, and
/// every example is in one, but for labels:K: the examples of a class that no party drew are
/// dropped, as in NIID-Bench; and for those that a file leaves out. Every label < `classes`.
/// invalid_input when a party would hold nothing (dirichlet: fewer than
/// dirichlet_party_examples_min after dirichlet_draws_max draws), or the file does not fit.
[[nodiscard]] Result<std::vector<std::vector<std::uint32_t>>> partition(
    const PartitionSpec& spec, std::span<const std::uint8_t> labels, std::uint32_t classes,
    std::uint32_t parties, std::uint64_t seed);

}  // namespace fl
