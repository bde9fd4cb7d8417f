// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/loops.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <algorithm>
#include <cmath>

namespace fl::site {

namespace {

std::int64_t kept(double fraction, std::int64_t elements) {
  const auto count =
      static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(elements)));
  return std::clamp(count, std::min<std::int64_t>(elements, 1), elements);
}

/// The indices of the `count` values with the largest magnitudes. On a CPU they are ascending, and
/// of equal values they are the first.
torch::Tensor largest(const torch::Tensor& values, std::int64_t count) {
  if (!values.is_cpu())
    return std::get<1>(values.abs().topk(count, 0, /*largest=*/true, /*sorted=*/false))
        .to(torch::kInt32);
  torch::Tensor indices = torch::empty({count}, torch::kInt32);
  find_largest_values(span_of(values.to(torch::kFloat32)),
                      {indices.mutable_data_ptr<std::int32_t>(), static_cast<std::size_t>(count)});
  return indices;
}

class Sparse : public GradientHook {
 public:
  explicit Sparse(double fraction) : fraction_(fraction) {}

  void reduce(Bucket& bucket, Ranks& ranks) final {
    torch::Tensor& residual = residuals_.of(bucket);
    if (!all_ranks_finite(bucket.gradient, residual, ranks)) {
      divide_and_sum(bucket.gradient, ranks);
    } else {
      torch::Tensor& values = residual.add_(bucket.gradient);
      const torch::Tensor chosen = exchange(values, kept(fraction_, values.numel()), bucket, ranks);
      values.index_fill_(0, chosen, 0);  // The rest is the residual.
    }
    if (bucket.is_last) ++step_;
  }
  [[nodiscard]] HookState save() const final {
    HookState state = state_with_step(step_);
    residuals_.save(state);
    return state;
  }
  void load(const HookState& state) final {
    step_ = step_in(state);
    residuals_.load(state);
  }

 protected:
  /// Replaces bucket.gradient by the mean of what the ranks send of `values`. Returns the `count`
  /// indices that this rank sent.
  virtual torch::Tensor exchange(const torch::Tensor& values, std::int64_t count, Bucket& bucket,
                                 Ranks& ranks) = 0;
  [[nodiscard]] std::int64_t step() const { return step_; }

 private:
  double fraction_;
  std::int64_t step_ = 0;
  Residuals residuals_;
};

class TopK final : public Sparse {
 public:
  using Sparse::Sparse;

 private:
  torch::Tensor exchange(const torch::Tensor& values, std::int64_t count, Bucket& bucket,
                         Ranks& ranks) override {
    const torch::Tensor chosen = largest(values, count);
    const torch::Tensor indices = gather(chosen, ranks);
    const torch::Tensor sent = gather(values.index_select(0, chosen), ranks);
    bucket.gradient.zero_();
    for (int rank = 0; rank < ranks.size(); ++rank)  // In rank order, for equal bits.
      bucket.gradient.index_add_(0, indices[rank], sent[rank]);
    bucket.gradient.div_(ranks.size());
    return chosen.to(torch::kInt64);
  }
};

class RandK final : public Sparse {
 public:
  using Sparse::Sparse;

 private:
  torch::Tensor exchange(const torch::Tensor& values, std::int64_t count, Bucket& bucket,
                         Ranks& ranks) override {
    // Chooses one random place in each of `count` equal stretches. All ranks choose the same
    // places, because the seed is a function of the step and the bucket.
    const auto seed = static_cast<std::uint64_t>(step()) << 20 | bucket.index;
    const torch::Tensor bounds =
        (torch::arange(count + 1, torch::kInt64) * values.numel()).div(count, "floor");
    const torch::Tensor begin = bounds.narrow(0, 0, count);
    const torch::Tensor place =
        torch::rand({count}, at::detail::createCPUGenerator(seed), torch::kFloat64) *
        (bounds.narrow(0, 1, count) - begin);
    const torch::Tensor chosen = (begin + place.to(torch::kInt64)).to(values.device());
    torch::Tensor sent = values.index_select(0, chosen);
    divide_and_sum(sent, ranks);
    bucket.gradient.zero_().index_copy_(0, chosen, sent);
    return chosen;
  }
};

}  // namespace

std::unique_ptr<GradientHook> make_topk(SpecOptions& options) {
  return std::make_unique<TopK>(options.number("keep", 0.01, 1e-6, 1));
}

std::unique_ptr<GradientHook> make_randk(SpecOptions& options) {
  return std::make_unique<RandK>(options.number("keep", 0.01, 1e-6, 1));
}

}  // namespace fl::site
