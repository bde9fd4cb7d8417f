// SPDX-License-Identifier: Apache-2.0
// LowRankHook: the code that both PowerSGD hooks share. It has their start, error feedback, state,
// random starts and way to orthogonalize, which give the bits of PyTorch's powerSGD_hook.
#pragma once

#include "client/site/rank/gradient_hook.hpp"
#include "shared/base/spec/spec_options.hpp"

#include <ATen/core/Generator.h>
#include <cstdint>
#include <map>
#include <random>
#include <string>

namespace fl::site {

struct LowRankHookSettings {
  std::int64_t rank = 1;
  std::int64_t start = 1000;  // The first step that is compressed; the steps before are sums.
  double rate = 2;            // A matrix is compressed if it becomes smaller by more than this.
  double epsilon = 1e-8;      // Added to the norms by which columns are divided.
};
[[nodiscard]] LowRankHookSettings low_rank_settings(SpecOptions& options, bool has_rate);

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

/// A hook that sends low-rank approximations from step `start` on, and adds what they lost to the
/// gradients of the next step.
class LowRankHook : public GradientHook {
 public:
  explicit LowRankHook(const LowRankHookSettings& settings) : settings_(settings) {}

  void reduce(Bucket& bucket, Ranks& ranks) final;
  [[nodiscard]] HookState save() const final;
  void load(const HookState& state) final;

 protected:
  /// Replaces the bucket's gradient by an approximation of the ranks' mean, and keeps what is lost.
  /// False, with the gradient as it was: some rank has a value that is not finite.
  virtual bool compress(Bucket& bucket, Ranks& ranks);
  /// Replaces the bucket's gradient, with what was lost before, by an approximation of the ranks'
  /// mean. All values are finite.
  virtual void approximate(Bucket& bucket, Ranks& ranks) = 0;

  /// A generator on the CPU with the next start seed.
  [[nodiscard]] at::Generator next_generator();
  /// Makes the columns of each matrix orthonormal, in place. `matrices` is [count, n, r] with
  /// r <= n.
  void orthogonalize(torch::Tensor& matrices) const;

  [[nodiscard]] std::int64_t rank() const { return settings_.rank; }
  [[nodiscard]] double rate() const { return settings_.rate; }

  /// Right factors, by what they are factors of.
  std::map<std::string, torch::Tensor> factors_;

 private:
  LowRankHookSettings settings_;
  std::int64_t step_ = 0;
  StartSeeds seeds_;
  Residuals residuals_;
};

/// Random values on the CPU, of the type that `options` have.
[[nodiscard]] torch::Tensor random_factor(at::IntArrayRef sizes, const at::Generator& generator,
                                          const torch::TensorOptions& options);

}  // namespace fl::site
