// SPDX-License-Identifier: Apache-2.0
// The size of the pieces in which gradients are reduced (--bucket-mb). Small pieces begin early and
// leave little to wait for at the end; each costs a latency.
#pragma once

#include "client/site/measured_choices.hpp"
#include "client/site/rank/topology.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace fl::site {

/// The parsed value of --bucket-mb.
struct BucketChoice {
  double mb = 0;             // In MiB; 0 if the flag was not given.
  bool is_measured = false;  // The flag is "auto".
};
/// "", "auto" or a number of MiB. Errors: invalid_input.
[[nodiscard]] Result<BucketChoice> parse_bucket_mb(std::string_view text);

/// Whether the size of the pieces changes no bit of a sum over `ranks`: each value is the sum of
/// two numbers, whose order does not matter, or is added up in the order of the ranks. A ring
/// begins with another rank at each place of a piece.
[[nodiscard]] bool is_free_of_bucket_size(const Topology& topology, int ranks);

/// The seconds that a sum takes.
struct SumCost {
  double latency_s = 0;
  double s_per_byte = 0;
};
/// Measures sums of at most 8 MiB. A collective; all ranks get the numbers of rank 0.
[[nodiscard]] SumCost measure_sum(const Topology& topology, const Nodes& nodes, Ranks& ranks);

/// The size with which all sums and the wait for the last one take the least time: of a model of M
/// bytes in pieces of s bytes that is M / s * latency + s * s_per_byte at the least, beside what
/// does not depend on s, so s = sqrt(M latency / s_per_byte). Rounded to a power of two, from
/// 512 KiB to 32 MiB.
[[nodiscard]] std::size_t best_bucket_bytes(std::size_t model_bytes, const SumCost& cost);

/// The size where nothing is measured. It hid most of the communication where it was tried.
inline constexpr std::size_t bucket_bytes_otherwise = 4 << 20;

/// The flags and facts by which choose_bucket_bytes() chooses.
struct BucketPlan {
  std::string bucket_mb;  // --bucket-mb.
  std::string hook;       // --hook.
  Topology topology = backend_topology();
  bool is_topology_measured = false;  // --topology auto.
  std::size_t model_bytes = 0;
};
/// Takes the size that --bucket-mb says. Measures it where the flag is "auto", and where it is not
/// given and the size changes no bit. A measured size that changes bits is kept in `choices`: one
/// that is there already is taken. A collective, with the same `choices` on all ranks. Errors:
/// invalid_input, corrupt.
[[nodiscard]] Result<std::size_t> choose_bucket_bytes(const BucketPlan& plan, const Nodes& nodes,
                                                      MeasuredChoices& choices, Ranks& ranks);

}  // namespace fl::site
