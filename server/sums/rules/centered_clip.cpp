// SPDX-License-Identifier: Apache-2.0
// centered-clip:T: v + the mean of (x_k - v) min(1, T / |x_k - v|), where v is the result of the
// round before, and zero at first (Karimireddy 2021, "Learning from history").
#include "server/sums/rules/rule_table.hpp"

#include <cmath>

namespace fl::server {

MakeWeighingRule make_centered_clip;

namespace {

class CenteredClip final : public WeighingRule {
 public:
  explicit CenteredClip(double clip) : clip_(clip) {}

  std::uint32_t least_updates() const override { return 1; }
  bool has_center() const override { return true; }
  /// The center is the last vector.
  std::vector<double> weights(const SquareMatrix& distances) const override {
    const std::size_t n = distances.size() - 1;
    std::vector<double> weights(n + 1);
    weights[n] = 1;
    for (std::size_t i = 0; i < n; ++i) {
      const double distance = std::sqrt(distances(i, n));
      const double kept = distance > clip_ ? clip_ / distance : 1;
      weights[i] = kept / static_cast<double>(n);
      weights[n] -= weights[i];
    }
    return weights;
  }

 private:
  double clip_;  // T.
};

}  // namespace

Result<std::shared_ptr<const WeighingRule>> make_centered_clip(const RuleArguments& arguments) {
  FL_TRY(const double clip, arguments.number("TAU", 1e30));
  return std::make_shared<const CenteredClip>(clip);
}

}  // namespace fl::server
