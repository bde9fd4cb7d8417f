// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/low_rank.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>

namespace fl {

namespace {

/// A parameter's gradient as a matrix [1, n, m], and its factors [1, n, r] and [1, m, r], which are
/// views into the memory that the ranks sum.
struct Matrix {
  std::int64_t parameter;
  torch::Tensor values;
  torch::Tensor p;
  torch::Tensor q;
};

class PowerSgd final : public GradientHook {
 public:
  explicit PowerSgd(const LowRankSettings& settings) : settings_(settings) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    if (state_.step < settings_.start) {
      divide_and_sum(bucket.gradient, ranks);
    } else {
      torch::Tensor& residual = state_.residuals.of(bucket);
      torch::Tensor values = bucket.gradient + residual;
      if (all_finite(values, ranks)) {
        bucket.gradient.copy_(values);
        approximate(bucket, ranks);
        residual.copy_(values.sub_(bucket.gradient));
      } else {
        divide_and_sum(bucket.gradient, ranks);
      }
    }
    if (bucket.is_last) ++state_.step;
  }

  [[nodiscard]] HookState save() const override { return state_.save(); }
  void load(const HookState& state) override { state_.load(state); }

 private:
  /// Replaces the gradient by the mean of the small tensors and by low-rank approximations of the
  /// mean of the matrices.
  void approximate(Bucket& bucket, Ranks& ranks) {
    std::vector<Matrix> matrices;
    std::vector<torch::Tensor> small;
    std::vector<torch::Tensor> small_flat;
    for (const Bucket::Part& part : bucket.parts) {
      const torch::Tensor values = bucket.view(part);
      if (is_worth_it(part)) {
        matrices.push_back({part.parameter, values.reshape({1, part.shape[0], -1}), {}, {}});
      } else {
        small.push_back(values);
        small_flat.push_back(values.flatten());
      }
    }
    torch::Tensor ps;
    torch::Tensor qs;
    place_factors(matrices, bucket.gradient.options(), ps, qs);
    start_factors(matrices);
    for (Matrix& matrix : matrices) torch::bmm_out(matrix.p, matrix.values, matrix.q);
    if (!small.empty()) {
      torch::Tensor sums = torch::cat(small_flat);
      ranks.sum(sums);
      sums.div_(ranks.size());
      std::int64_t offset = 0;
      for (torch::Tensor& tensor : small) {
        tensor.copy_(sums.narrow(0, offset, tensor.numel()).view_as(tensor));
        offset += tensor.numel();
      }
    }
    ranks.sum(ps);
    for (Matrix& matrix : matrices) {
      orthogonalize(matrix.p, settings_.epsilon);
      torch::bmm_out(matrix.q, matrix.values.transpose(1, 2), matrix.p);
    }
    ranks.sum(qs);
    qs.div_(ranks.size());
    for (Matrix& matrix : matrices) {
      torch::bmm_out(matrix.values, matrix.p, matrix.q.transpose(1, 2));
      state_.factors[std::to_string(matrix.parameter)] = matrix.q.clone();
    }
  }

  [[nodiscard]] bool is_worth_it(const Bucket::Part& part) const {
    if (part.shape.empty() || part.elements() == 0) return false;
    const std::int64_t n = part.shape[0];
    const std::int64_t m = part.elements() / n;
    const std::int64_t rank = std::min({n, m, settings_.rank});
    return static_cast<double>((n + m) * rank) * settings_.rate < static_cast<double>(n * m);
  }

  void place_factors(std::vector<Matrix>& matrices, const torch::TensorOptions& options,
                     torch::Tensor& ps, torch::Tensor& qs) const {
    std::int64_t p_count = 0;
    std::int64_t q_count = 0;
    const auto rank_of = [this](const Matrix& matrix) {
      return std::min({matrix.values.size(1), matrix.values.size(2), settings_.rank});
    };
    for (const Matrix& matrix : matrices) {
      p_count += matrix.values.size(1) * rank_of(matrix);
      q_count += matrix.values.size(2) * rank_of(matrix);
    }
    ps = torch::empty({p_count}, options);
    qs = torch::empty({q_count}, options);
    p_count = q_count = 0;
    for (Matrix& matrix : matrices) {
      const std::int64_t n = matrix.values.size(1);
      const std::int64_t m = matrix.values.size(2);
      const std::int64_t rank = rank_of(matrix);
      matrix.p = ps.narrow(0, p_count, n * rank).view({1, n, rank});
      matrix.q = qs.narrow(0, q_count, m * rank).view({1, m, rank});
      p_count += n * rank;
      q_count += m * rank;
    }
  }

  /// The right factors of the step before, or random ones if one of them is missing.
  void start_factors(std::vector<Matrix>& matrices) {
    const bool has_all = std::ranges::all_of(matrices, [this](const Matrix& matrix) {
      const auto found = state_.factors.find(std::to_string(matrix.parameter));
      return found != state_.factors.end() && found->second.sizes() == matrix.q.sizes();
    });
    at::Generator generator;
    if (!has_all) generator = at::detail::createCPUGenerator(state_.seeds.next());
    for (Matrix& matrix : matrices) {
      if (has_all)
        matrix.q.copy_(state_.factors[std::to_string(matrix.parameter)]);
      else
        matrix.q.copy_(
            torch::randn(matrix.q.sizes(), generator, matrix.q.options().device(torch::kCPU)));
      orthogonalize(matrix.q, settings_.epsilon);
    }
  }

  LowRankSettings settings_;
  LowRankState state_;
};

}  // namespace

std::unique_ptr<GradientHook> make_powersgd(SpecOptions& options) {
  return std::make_unique<PowerSgd>(low_rank_settings(options, true));
}

}  // namespace fl
