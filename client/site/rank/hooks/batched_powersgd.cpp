// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/low_rank_hook.hpp"

#include <cmath>

namespace fl::site {

namespace {

class BatchedPowerSgd final : public LowRankHook {
 public:
  using LowRankHook::LowRankHook;

 private:
  bool compress(Bucket& bucket, Ranks& ranks) override {
    Bucket square = padded(bucket);
    if (!LowRankHook::compress(square, ranks)) return false;
    bucket.gradient.copy_(square.gradient.narrow(0, 0, bucket.gradient.numel()));
    return true;
  }

  /// Adds zeros behind the bucket, so that its elements make a square. What the padding loses is a
  /// part of the residual, as in PyTorch; the padding has a number that no parameter has.
  static Bucket padded(const Bucket& bucket) {
    const std::int64_t length = bucket.gradient.numel();
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(length))));
    const std::int64_t padding = side * side - length;
    Bucket square = bucket;
    square.gradient =
        torch::cat({bucket.gradient, torch::zeros({padding}, bucket.gradient.options())});
    square.parts.push_back(
        {.parameter = -1 - bucket.parts.at(0).parameter, .offset = length, .shape = {padding}});
    return square;
  }

  /// Replaces the gradient, seen as a square, by a low-rank approximation of the ranks' mean.
  void approximate(Bucket& bucket, Ranks& ranks) override {
    const auto side = static_cast<std::int64_t>(
        std::llround(std::sqrt(static_cast<double>(bucket.gradient.numel()))));
    torch::Tensor square = bucket.gradient.view({side, side});
    torch::Tensor& q = factor_of(bucket, side, square.options());
    torch::Tensor p = torch::empty_like(q);
    orthogonalize_matrix(q);
    torch::matmul_out(p, square, q);
    ranks.sum(p);
    orthogonalize_matrix(p);
    torch::matmul_out(q, square.t(), p);
    ranks.sum(q);
    q.div_(ranks.size());
    torch::matmul_out(square, p, q.t());
  }

  void orthogonalize_matrix(torch::Tensor& matrix) const {
    torch::Tensor batch = matrix.unsqueeze(0);
    orthogonalize(batch);
  }

  /// The right factor [side, rank] of the step before, or a random one.
  torch::Tensor& factor_of(const Bucket& bucket, std::int64_t side,
                           const torch::TensorOptions& options) {
    torch::Tensor& q = factors_[bucket.key()];
    const std::int64_t columns = std::min(side, rank());
    if (q.defined() && q.size(0) == side && q.size(1) == columns) {
      q = q.to(options);
    } else {
      q = random_factor({side, columns}, next_generator(), options).to(options);
    }
    return q;
  }
};

}  // namespace

std::unique_ptr<GradientHook> make_batched_powersgd(SpecOptions& options) {
  return std::make_unique<BatchedPowerSgd>(low_rank_settings(options, false));
}

}  // namespace fl::site
