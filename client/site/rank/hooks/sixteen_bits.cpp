// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"

#include <optional>
#include <utility>

namespace fl::site {

namespace {

/// bfloat16 has the range of fp32: what is infinite in it is infinite on all ranks after the sum,
/// as it would be in fp32.
class SixteenBits final : public GradientHook {
 public:
  SixteenBits(torch::ScalarType type, std::unique_ptr<GradientHook> inner)
      : type_(type), inner_(std::move(inner)) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    torch::Tensor gradient = bucket.gradient;
    bucket.gradient = gradient.to(type_);
    if (type_ == torch::kFloat16 && !all_ranks_finite(bucket.gradient, ranks)) {
      divide_and_sum(gradient, ranks);
    } else {
      inner_->reduce(bucket, ranks);
      gradient.copy_(bucket.gradient);
    }
    bucket.gradient = gradient;
  }
  void after_step(const std::vector<torch::Tensor>& parameters, bool is_last,
                  Ranks& ranks) override {
    inner_->after_step(parameters, is_last, ranks);
  }
  [[nodiscard]] std::optional<torch::ScalarType> plain_format() const override {
    return inner_->plain_format() ? std::optional(type_) : std::nullopt;
  }
  [[nodiscard]] HookState save() const override { return inner_->save(); }
  void load(const HookState& state) override { inner_->load(state); }

 private:
  torch::ScalarType type_;
  std::unique_ptr<GradientHook> inner_;
};

}  // namespace

std::unique_ptr<GradientHook> make_16_bits(torch::ScalarType type,
                                           std::unique_ptr<GradientHook> inner) {
  return std::make_unique<SixteenBits>(type, std::move(inner));
}

std::unique_ptr<GradientHook> make_fp16(SpecOptions& options) {
  return make_16_bits(torch::kFloat16, make_allreduce(options));
}

std::unique_ptr<GradientHook> make_bf16(SpecOptions& options) {
  return make_16_bits(torch::kBFloat16, make_allreduce(options));
}

}  // namespace fl::site
