// SPDX-License-Identifier: Apache-2.0
// How much the mean losses of several clients count in the mean of all. A loss is a mean over
// predictions, so its weight is their number. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>

namespace fl::server {

/// A client's mean loss and what its weight is made of.
struct LossWeight {
  double loss = 0;
  double examples = 0;  // The examples that its update counts with.
  /// The predictions that the client claims; none: its examples.
  std::optional<double> predictions = {};
};

/// The mean of these losses; NaN if none of them counts. Nobody checks a client's claim about its
/// predictions, so they count as at most `cap` times the lower median of the weights above 0, as
/// with examples (--weight-cap). 0: no limit.
[[nodiscard]] double mean_loss(std::span<const LossWeight> losses, double cap);

}  // namespace fl::server
