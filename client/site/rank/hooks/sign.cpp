// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/sign_bits.hpp"

namespace fl {

namespace {

class Sign final : public GradientHook {
 public:
  void reduce(Bucket& bucket, Ranks& ranks) override {
    torch::Tensor& residual = residuals_.of(bucket);
    const torch::Tensor values = bucket.gradient + residual;
    if (!all_finite(values, ranks)) return divide_and_sum(bucket.gradient, ranks);
    std::vector<torch::Tensor> scale;
    for (const Bucket::Part& part : bucket.parts)
      scale.push_back(values.narrow(0, part.offset, part.elements()).abs().mean());
    const torch::Tensor bits = gather(pack_signs(values), ranks);
    const torch::Tensor scales = gather(torch::stack(scale).to(torch::kFloat32), ranks);
    bucket.gradient.zero_();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const torch::Tensor decoded = decode(bucket, bits[rank], scales[rank]);
      bucket.gradient.add_(decoded);
      if (rank == ranks.rank()) residual.copy_(values - decoded);
    }
    bucket.gradient.div_(ranks.size());
  }
  [[nodiscard]] HookState save() const override {
    HookState state;
    residuals_.save(state);
    return state;
  }
  void load(const HookState& state) override { residuals_.load(state); }

 private:
  static torch::Tensor decode(const Bucket& bucket, const torch::Tensor& bits,
                              const torch::Tensor& scales) {
    torch::Tensor values = unpack_signs(bits, bucket.gradient.numel());
    for (size_t i = 0; i < bucket.parts.size(); ++i)
      values.narrow(0, bucket.parts[i].offset, bucket.parts[i].elements())
          .mul_(scales[static_cast<std::int64_t>(i)]);
    return values;
  }

  Residuals residuals_;
};

}  // namespace

std::unique_ptr<GradientHook> make_sign(SpecOptions&) { return std::make_unique<Sign>(); }

}  // namespace fl
