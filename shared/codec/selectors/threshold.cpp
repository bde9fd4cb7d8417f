// SPDX-License-Identifier: Apache-2.0
// "threshold": selects the elements with |x| > threshold. Strom 2015, "Scalable distributed DNN
// training using commodity GPU cloud computing"; the values are sent as well, as in Dryden 2016.
#include "shared/base/error.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace fl::codec {

namespace {

class Threshold final : public Selector {
 public:
  explicit Threshold(float threshold) : threshold_(std::fabs(threshold)) {
    FL_ASSERT(threshold >= 0 && std::isfinite(threshold));
  }

  std::string spec() const override { return fmt::format("threshold:{}", threshold_); }

  bool sends_few() const override { return false; }

  std::size_t selected_max(std::uint64_t, std::size_t block_elements) const override {
    return block_elements;
  }

  bool has_cutoffs() const override { return true; }

  SelectionPlan plan(const VectorToPlan&) const override {
    return {.cutoffs = {{.magnitude = std::bit_cast<std::uint32_t>(threshold_), .ties = 0}}};
  }

  Cutoff* cutoff_of(std::uint32_t, SelectionPlan& plan) const override {
    return plan.cutoffs.data();
  }

 private:
  float threshold_;
};

}  // namespace

SelectorResult parse_threshold(const SpecParts& parts) {
  FL_CHECK(check_has_argument(
      parts, "threshold needs a magnitude here, such as threshold:0.001; larger ones are sent"));
  // Up to 1e6 a spec shows the number without an exponent such as e+06, whose plus would end the
  // codec.
  FL_TRY(const float threshold,
         parse_real<float>(parts.whole, *parts.argument, "the threshold must be from 0 to 1000000",
                           [](float t) { return t >= 0 && t <= 1e6f; }));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<Threshold>(threshold);
}

}  // namespace fl::codec
