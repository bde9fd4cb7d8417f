// SPDX-License-Identifier: Apache-2.0
// krum[:f]: the update that is nearest to its n - f - 1 nearest others, as in Farhadkhani 2022, in
// Allouah 2023, and in the library byzfl. Blanchard 2017, "Machine learning with adversaries",
// takes one less.
//
// multikrum:f,m: the mean of the m best by Krum's measure (Blanchard 2017, section 4).
#include "server/sums/rules/rule_table.hpp"

#include <algorithm>
#include <optional>

namespace fl::server {

MakeWeighingRule make_krum, make_multikrum;

namespace {

class Krum final : public WeighingRule {
 public:
  /// `f`: none: as many as n allows. `best`: how many updates make the result.
  Krum(std::optional<std::uint32_t> f, std::uint32_t best) : f_(f), best_(best) {}

  std::uint32_t least_updates() const override {
    return std::max(2 * f_.value_or(1) + 3, best_ + f_.value_or(1));
  }
  std::size_t suspects_of(std::size_t n) const override {
    const std::size_t most = n < 3 ? 0 : (n - 3) / 2;
    return std::min<std::size_t>(f_.value_or(most), most);
  }
  std::vector<double> weights(const SquareMatrix& distances) const override;

 private:
  std::optional<std::uint32_t> f_;
  std::uint32_t best_;
};

std::vector<double> Krum::weights(const SquareMatrix& distances) const {
  const std::size_t n = distances.size();
  const std::size_t f = suspects_of(n);
  std::vector<double> scores(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> others;
    for (std::size_t j = 0; j < n; ++j) {
      if (j != i) others.push_back(distances(i, j));
    }
    std::ranges::sort(others);
    const std::size_t counted = std::min(others.size(), n - f - 1);
    for (std::size_t k = 0; k < counted; ++k) scores[i] += others[k];
  }
  std::vector<double> weights(n);
  const std::size_t chosen = std::min<std::size_t>(best_, n);
  for (const std::size_t i : indices_of_smallest(scores, chosen))
    weights[i] = 1 / static_cast<double>(chosen);
  return weights;
}

}  // namespace

Result<std::shared_ptr<const WeighingRule>> make_krum(const RuleArguments& arguments) {
  std::optional<std::uint32_t> f;
  if (arguments.is_given()) {
    FL_TRY(f, arguments.count("f"));
  }
  return std::make_shared<const Krum>(f, 1);
}

Result<std::shared_ptr<const WeighingRule>> make_multikrum(const RuleArguments& arguments) {
  const auto [first, second] = arguments.two();
  FL_TRY(const auto f, arguments.count(first, "f, the first number,", 0));
  FL_TRY(const auto best, arguments.count(second.value_or(""), "m, the second number,", 1));
  return std::make_shared<const Krum>(f, best);
}

}  // namespace fl::server
