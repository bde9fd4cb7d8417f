// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/low_rank_hook.hpp"

#include <algorithm>

namespace fl::site {

namespace {

/// A parameter's gradient as a matrix [1, n, m], and its factors [1, n, r] and [1, m, r], which are
/// views into the memory that the ranks sum.
struct Matrix {
  std::int64_t parameter;
  torch::Tensor values;
  torch::Tensor p;
  torch::Tensor q;
};

class PowerSgd final : public LowRankHook {
 public:
  using LowRankHook::LowRankHook;

 private:
  /// Replaces the gradient by the mean of the small tensors and by low-rank approximations of the
  /// mean of the matrices.
  void approximate(Bucket& bucket, Ranks& ranks) override {
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
      orthogonalize(matrix.p);
      torch::bmm_out(matrix.q, matrix.values.transpose(1, 2), matrix.p);
    }
    ranks.sum(qs);
    qs.div_(ranks.size());
    for (Matrix& matrix : matrices) {
      torch::bmm_out(matrix.values, matrix.p, matrix.q.transpose(1, 2));
      factors_[std::to_string(matrix.parameter)] = matrix.q.clone();
    }
  }

  [[nodiscard]] bool is_worth_it(const Bucket::Part& part) const {
    if (part.shape.empty() || part.elements() == 0) return false;
    const std::int64_t n = part.shape[0];
    const std::int64_t m = part.elements() / n;
    const std::int64_t columns = std::min({n, m, rank()});
    return static_cast<double>((n + m) * columns) * rate() < static_cast<double>(n * m);
  }

  void place_factors(std::vector<Matrix>& matrices, const torch::TensorOptions& options,
                     torch::Tensor& ps, torch::Tensor& qs) const {
    std::int64_t p_count = 0;
    std::int64_t q_count = 0;
    const auto rank_of = [this](const Matrix& matrix) {
      return std::min({matrix.values.size(1), matrix.values.size(2), rank()});
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
      const std::int64_t columns = rank_of(matrix);
      matrix.p = ps.narrow(0, p_count, n * columns).view({1, n, columns});
      matrix.q = qs.narrow(0, q_count, m * columns).view({1, m, columns});
      p_count += n * columns;
      q_count += m * columns;
    }
  }

  /// Takes the right factors of the step before, or random ones if one of them is missing.
  void start_factors(std::vector<Matrix>& matrices) {
    const bool has_all = std::ranges::all_of(matrices, [this](const Matrix& matrix) {
      const auto found = factors_.find(std::to_string(matrix.parameter));
      return found != factors_.end() && found->second.sizes() == matrix.q.sizes();
    });
    at::Generator generator;
    if (!has_all) generator = next_generator();
    for (Matrix& matrix : matrices) {
      if (has_all)
        matrix.q.copy_(factors_[std::to_string(matrix.parameter)]);
      else
        matrix.q.copy_(random_factor(matrix.q.sizes(), generator, matrix.q.options()));
      orthogonalize(matrix.q);
    }
  }
};

}  // namespace

std::unique_ptr<GradientHook> make_powersgd(SpecOptions& options) {
  return std::make_unique<PowerSgd>(low_rank_settings(options, true));
}

}  // namespace fl::site
