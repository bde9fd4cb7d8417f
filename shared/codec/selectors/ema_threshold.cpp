// SPDX-License-Identifier: Apache-2.0
// "ema-threshold": a threshold for each tensor that adapts from round to round, to send a wanted
// fraction (density) of the elements. It reads the values once; topk reads them three times. The
// first round uses topk's cutoff. Each later round sends the values above the threshold that it
// finds in the CodecState, and stores there for the next round
//
//   threshold * (actual density / wanted density)^a,  a = 3 / (4 n)
//
// with n = log2(1 / wanted density), rounded down, at least 1. So the logarithm of the threshold is
// an exponential moving average of the logarithms of the thresholds that the rounds needed. The
// exponent a suits common distributions: in the tail of a Gaussian the density is about
// threshold^(-2 ln(1 / density)), in that of a Laplace distribution threshold^(-ln(1 / density)).
// One step then corrects most of the deviation for a Gaussian, and half of it for a Laplace
// distribution. This rule is our own, not from a paper.
//
// A round uses topk's cutoff again if the threshold would give more than four times the wanted
// density, or less than a quarter of it.
#include "shared/base/error.hpp"
#include "shared/codec/core/power.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace fl::codec {

namespace {

constexpr double off_max = 4;  // The largest ratio between actual and wanted density, either way.

std::uint64_t count_above(std::span<const float> x, float threshold) {
  std::uint64_t count = 0;
  for (const float v : x) count += std::fabs(v) > threshold ? 1 : 0;
  return count;
}

class EmaThreshold final : public Selector {
 public:
  explicit EmaThreshold(double fraction) : fraction_(fraction) {
    FL_ASSERT(fraction > 0 && fraction <= 1);
    halvings_ = static_cast<std::uint64_t>(std::max(1, std::ilogb(1 / fraction)));
  }

  std::string spec() const override { return fmt::format("ema-threshold:{}", fraction_); }

  bool sends_few() const override { return is_few(fraction_); }

  std::size_t selected_max(std::uint64_t, std::size_t block_elements) const override {
    return block_elements;
  }

  bool has_cutoffs() const override { return true; }

  SelectionPlan plan(const VectorToPlan& vector) const override {
    SelectionPlan plan;
    plan.cutoffs.resize(vector.layout->tensors().size());
    for (const std::uint32_t t : vector.tensors) {
      const std::string place = fmt::format("ema-threshold/{}", vector.layout->tensors()[t].name);
      const auto found =
          vector.state != nullptr ? vector.state->find(place) : std::span<const float>();
      float next = 0;
      plan.cutoffs[t] =
          find_cutoff(vector.values_of(t), found.size() == 1 ? found[0] : 0, vector.device, next);
      if (vector.state != nullptr && next > 0 && std::isfinite(next))
        vector.state->set(place, {next});
    }
    return plan;
  }

  Cutoff* cutoff_of(std::uint32_t tensor, SelectionPlan& plan) const override {
    return &plan.cutoffs[tensor];
  }

 private:
  /// The cutoff of this round; `next` gets the threshold for the next round. A threshold of 0 means
  /// that there is none.
  [[nodiscard]] Cutoff find_cutoff(std::span<const float> run, float threshold,
                                   DeviceVector* device, float& next) const {
    const auto wanted = static_cast<double>(share_of(run.size(), fraction_));
    if (threshold > 0) {
      const double ratio = static_cast<double>(count_above(run, threshold)) / wanted;
      if (ratio <= off_max && ratio * off_max >= 1) {
        next = static_cast<float>(threshold * power_of(ratio));
        return {.magnitude = std::bit_cast<std::uint32_t>(threshold), .ties = 0};
      }
    }
    const Cutoff cutoff = largest_share({&run, 1}, fraction_, device);
    next = std::bit_cast<float>(cutoff.magnitude);
    return cutoff;
  }

  [[nodiscard]] double power_of(double ratio) const {
    return fractional_power(ratio, 3, 4 * halvings_);
  }

  double fraction_;
  std::uint64_t halvings_;  // The n of the formula above.
};

}  // namespace

SelectorResult parse_ema_threshold(const SpecParts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<EmaThreshold>(fraction);
}

}  // namespace fl::codec
