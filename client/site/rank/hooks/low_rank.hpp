// SPDX-License-Identifier: Apache-2.0
// What both PowerSGD hooks share: their state, their random starts and their way to orthogonalize,
// which give the bits of PyTorch's powerSGD_hook.
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "shared/base/spec/spec_options.hpp"

#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace fl {

struct LowRankSettings {
  std::int64_t rank = 1;
  std::int64_t start = 1000;  // The first step that is compressed; the steps before are sums.
  double rate = 2;            // A matrix is compressed if it becomes smaller by more than this.
  double epsilon = 1e-8;      // Added to the norms by which columns are divided.
};
[[nodiscard]] LowRankSettings low_rank_settings(SpecOptions& options, bool has_rate);

/// numpy's RandomState(0).randint(1000000000), one number after the other.
class StartSeeds {
 public:
  [[nodiscard]] std::uint64_t next();
  [[nodiscard]] std::int64_t drawn() const { return drawn_; }
  /// Goes on after the first `drawn` numbers.
  void skip_to(std::int64_t drawn);

 private:
  std::mt19937 numbers_{0};
  std::int64_t drawn_ = 0;
};

/// What both keep from step to step.
struct LowRankState {
  std::int64_t step = 0;
  StartSeeds seeds;
  std::map<std::string, torch::Tensor> factors;  // Right factors, by what they are of.
  Residuals residuals;

  [[nodiscard]] HookState save() const;
  void load(const HookState& state);
};

/// Makes the columns of each matrix orthonormal, in place. `matrices` is [count, n, r] with r <= n.
void orthogonalize(torch::Tensor& matrices, double epsilon);

}  // namespace fl
