// SPDX-License-Identifier: Apache-2.0
// The memory and the traffic of a rank of this release, by the division of a training. The plans'
// own formulas (formulas.hpp) are those of the literature, whose ranks hold 16-bit weights and
// gradients; ours hold them in fp32 in every precision. docs/results/parallel.md has measured
// figures beside these.
#pragma once

#include "client/site/plan/inputs.hpp"

#include <cstdint>

namespace fl::site {

/// How ranks share a model, as far as it decides what one takes.
struct RankShares {
  int zero = 0;
  std::int64_t ranks = 1;  // Those that share each batch.
  bool offload = false;
  bool recomputes = false;  // --recompute full.
  PlanPrecision precision = PlanPrecision::fp32;
  std::int64_t microbatches = 1;
  /// The passes are on a CPU: a rank that steps one stretch of the model reads the start from its
  /// file.
  bool on_cpu = false;
};

/// Bytes of a rank, beside activations.
struct RankLoad {
  double on_gpu = 0;
  double on_host = 0;
  double sent =
      0;  // In a step, for gradients and parameters. 16-bit precisions with a 16-bit hook.
};

/// The load by a model of so many parameters that Adam trains; its largest unit (a layer or a
/// block) has `unit_parameters`.
[[nodiscard]] RankLoad rank_load(double parameters, double unit_parameters,
                                 const RankShares& shares);

}  // namespace fl::site
