// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"

#include <optional>

namespace fl::site {

namespace {

class Allreduce final : public GradientHook {
 public:
  void reduce(Bucket& bucket, Ranks& ranks) override { divide_and_sum(bucket.gradient, ranks); }
  [[nodiscard]] std::optional<torch::ScalarType> plain_format() const override {
    return torch::kFloat32;
  }
};

}  // namespace

std::unique_ptr<GradientHook> make_allreduce(SpecOptions&) { return std::make_unique<Allreduce>(); }

}  // namespace fl::site
