// SPDX-License-Identifier: Apache-2.0
// trimmed:F: the mean of each coordinate without its F smallest and F largest values (Yin 2018,
// "Byzantine-robust distributed learning", algorithm 1, option II). Below 1, F is a part of the
// updates, rounded up.
#include "server/sums/rules/rule_table.hpp"

#include <algorithm>
#include <cmath>

namespace fl::server {

MakeCoordinateRule make_trimmed;

namespace {

class Trimmed final : public CoordinateRule {
 public:
  explicit Trimmed(double trim) : trim_(trim) {}

  std::uint32_t least_updates() const override {
    return trim_ >= 1 ? 2 * static_cast<std::uint32_t>(trim_) + 1 : 3;
  }
  std::size_t dropped_of(std::size_t n) const override {
    const double wanted = trim_ >= 1 ? trim_ : std::ceil(trim_ * static_cast<double>(n) - 1e-9);
    return std::min(static_cast<std::size_t>(wanted), (n - 1) / 2);
  }

 private:
  double trim_;  // F.
};

}  // namespace

Result<std::shared_ptr<const CoordinateRule>> make_trimmed(const RuleArguments& arguments) {
  FL_TRY(const double trim, arguments.number("F", rule_updates_max));
  const bool is_count = trim >= 1 && trim == std::floor(trim);
  if (!is_count && trim >= 0.5)
    return arguments.wrong("F is a whole number of updates, or a part of them below 0.5");
  return std::make_shared<const Trimmed>(trim);
}

}  // namespace fl::server
