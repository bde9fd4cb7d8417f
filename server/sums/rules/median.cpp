// SPDX-License-Identifier: Apache-2.0
// median: the median of each coordinate; of an even number, the mean of the middle two (Yin 2018,
// "Byzantine-robust distributed learning", algorithm 1, option I).
#include "server/sums/rules/rule_table.hpp"

namespace fl::server {

MakeCoordinateRule make_median;

namespace {

class Median final : public CoordinateRule {
 public:
  std::uint32_t least_updates() const override { return 3; }
  std::size_t dropped_of(std::size_t n) const override { return (n - 1) / 2; }
};

}  // namespace

Result<std::shared_ptr<const CoordinateRule>> make_median(const RuleArguments& arguments) {
  FL_CHECK(arguments.none());
  return std::make_shared<const Median>();
}

}  // namespace fl::server
