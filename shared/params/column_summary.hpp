// SPDX-License-Identifier: Apache-2.0
// How large the values of data are: what each client tells of them, so that a model can bring all
// to mean 0 and variance 1. Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl {

/// Count, mean and sum of squared deviations from it of one value over examples. Missing values do
/// not count.
struct ColumnSummary {
  double count = 0;
  double mean = 0;
  double squares = 0;
  friend bool operator==(const ColumnSummary&, const ColumnSummary&) = default;
};
/// Checks what a client says of its values: their number, that counts are at most `examples`, and
/// that mean and variance are finite as fp32. Errors: invalid_input.
[[nodiscard]] Result<void> check_summaries(std::span<const ColumnSummary> told,
                                           std::uint64_t wanted, std::uint64_t examples);
/// The summary of all examples together. Chan, Golub, LeVeque, "Updating Formulae and a Pairwise
/// Algorithm for Computing Sample Variances", 1979, formulas 2.1. Adds `more` to `sum`, which has
/// the same length, as if only this share of its examples were there.
void add_summaries(std::span<ColumnSummary> sum, std::span<const ColumnSummary> more,
                   double share = 1);
/// The median of the means and the median of the variances, over the trainers that know a value.
/// All have the same length, and there is at least one.
[[nodiscard]] std::vector<ColumnSummary> median_summaries(
    std::span<const std::vector<ColumnSummary>> told);
}  // namespace fl
