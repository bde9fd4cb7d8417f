// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/sign_bits.hpp"

namespace fl::site {

namespace {

class Sign final : public GradientHook {
 public:
  void reduce(Bucket& bucket, Ranks& ranks) override {
    torch::Tensor& residual = residuals_.of(bucket);
    if (!all_ranks_finite(bucket.gradient, residual, ranks))
      return divide_and_sum(bucket.gradient, ranks);
    const torch::Tensor& values = residual.add_(bucket.gradient);
    std::vector<SignCode> codes;
    std::vector<torch::Tensor> own_bits;
    std::vector<torch::Tensor> own_scales;
    for (const Bucket::Part& part : bucket.parts) {
      codes.push_back(sign_code_of(values.narrow(0, part.offset, part.elements())));
      own_bits.push_back(codes.back().bits);
      own_scales.push_back(codes.back().scale);
    }
    const torch::Tensor bits = gather(torch::cat(own_bits), ranks);
    const torch::Tensor scales = gather(torch::cat(own_scales), ranks);
    std::int64_t byte = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const Bucket::Part& part = bucket.parts[i];
      const std::int64_t bytes = codes[i].bits.numel();
      mean_of_sign_codes(bits.narrow(1, byte, bytes),
                         scales.select(1, static_cast<std::int64_t>(i)),
                         bucket.gradient.narrow(0, part.offset, part.elements()));
      subtract_sign_code(codes[i], values.narrow(0, part.offset, part.elements()));
      byte += bytes;
    }
  }
  [[nodiscard]] HookState save() const override {
    HookState state;
    residuals_.save(state);
    return state;
  }
  void load(const HookState& state) override { residuals_.load(state); }

 private:
  Residuals residuals_;
};

}  // namespace

std::unique_ptr<GradientHook> make_sign(SpecOptions&) { return std::make_unique<Sign>(); }

}  // namespace fl::site
