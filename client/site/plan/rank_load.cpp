// SPDX-License-Identifier: Apache-2.0
#include "client/site/plan/rank_load.hpp"

namespace fl::site {

RankLoad rank_load(double parameters, double unit_parameters, const RankShares& shares) {
  const double ranks = real(shares.ranks);
  const bool has_ranks = shares.ranks > 1;
  const int zero = has_ranks ? shares.zero : 0;
  const double part = parameters / ranks;
  const double stepped = zero >= 1 ? part : parameters;
  RankLoad load;
  // Weights, with up to three units together; gradients, with two units' on their way, and with
  // stage 1 those of all units from pass to pass.
  if (zero >= 1) {
    const bool keeps_gradients = zero == 1 && shares.microbatches > 1;
    load.on_gpu = 4 * (part + (zero < 3 ? parameters : 3 * unit_parameters));
    load.on_gpu += 4 * (part + (keeps_gradients ? parameters : 2 * unit_parameters));
  } else {
    // The reducer's buckets hold the gradient once more.
    load.on_gpu = 4 * parameters * (has_ranks ? 3 : 2);
  }
  // The start of the round, and two moments.
  const bool has_start = zero >= 1 || !shares.on_cpu;
  const double optimizer = (has_start ? 12 : 8) * stepped;
  if (shares.offload) {
    load.on_host = optimizer + 8 * stepped;  // Weights and gradient, on their way.
  } else {
    load.on_gpu += optimizer;
  }
  const bool is_narrow = shares.precision != PlanPrecision::fp32;
  // Copies in 16 bits for the passes; recomputed units drop theirs.
  if (is_narrow) load.on_gpu += 2 * (shares.recomputes ? 2 * unit_parameters : parameters);
  if (!has_ranks) return load;
  const double away = (ranks - 1) / ranks;
  const double gradients = (is_narrow ? 2 : 4) * parameters * away;
  // Nearly all parameters are those of layers that a mixed pass rounds: these travel rounded.
  const double weights = (is_narrow ? 2 : 4) * parameters * away;
  const double times = real(shares.microbatches);
  switch (zero) {
    case 0: load.sent = 2 * gradients; break;
    case 1: load.sent = gradients + weights; break;
    case 2: load.sent = times * gradients + weights; break;
    default: load.sent = times * (gradients + 2 * weights);
  }
  return load;
}

}  // namespace fl::site
