// SPDX-License-Identifier: Apache-2.0
// The privacy loss of one release of a Poisson-subsampled Gaussian mechanism, and its distribution
// on a grid. The mechanism adds up vectors of length 1 at most, of those that a coin with chance q
// has chosen, each with a coin of its own, and adds Gaussian noise with the standard deviation
// sigma to each value. Neighbours differ in one participant that is there or not. Pure; any thread.
//
// Observed along the participant's vector, the release is N(0, sigma^2) without it, and the mixture
// (1 - q) N(0, sigma^2) + q N(1, sigma^2) with it. The loss is the logarithm of the quotient of the
// two densities, with the first of the pair on top and drawn from it.
#pragma once

#include <cstddef>
#include <vector>

namespace fl::privacy {

/// Which of two neighbours the release is drawn from.
enum class Direction {
  removes,  // From the one with the participant.
  adds,     // From the one without.
};

struct Mechanism {
  double sampling_rate;     // q: above 0, at most 1.
  double noise_multiplier;  // sigma: above 0.
};

/// The logarithm of the mean of exp(order * loss); `order` may be below 0. By quadrature, to about
/// ten digits.
[[nodiscard]] double log_moment(const Mechanism& mechanism, Direction direction, double order);

/// A distribution on a grid: the loss (first + i) * unit has the probability masses[i].
struct LossDistribution {
  long first = 0;
  std::vector<double> masses;
  double rest = 0;  // The probability of all losses beyond: they count as infinite.
};

/// The distribution of the loss on the multiples of `unit`, with each loss divided between its two
/// neighbours on the grid such that both of its probabilities stay as they are: by the release with
/// the participant and by the one without. So it never shows less than the true loss, and exactly
/// that at each point of the grid (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, "Connect
/// the dots").
[[nodiscard]] LossDistribution loss_distribution(const Mechanism& mechanism, Direction direction,
                                                 double unit);

}  // namespace fl::privacy
