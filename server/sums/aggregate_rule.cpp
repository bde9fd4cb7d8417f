// SPDX-License-Identifier: Apache-2.0
#include "server/sums/aggregate_rule.hpp"

#include "server/sums/rules/rule_arguments.hpp"
#include "server/sums/rules/rule_table.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::server {

namespace {

constexpr std::string_view mixing_prefix = "nnm";

const RobustRule& robust(const AggregateRule& rule) {
  FL_ASSERT(!rule.is_mean());
  if (rule.by_coordinate) return *rule.by_coordinate;
  return *rule.weighing;
}

Result<void> read_rule(std::string_view spec, std::string_view text, AggregateRule& rule) {
  const auto [name, argument] = cut(text, ':');
  const RuleArguments arguments(spec, argument);
  const auto rows = rule_rows();
  const auto row = std::ranges::find(rows, name, &RuleRow::name);
  if (row == rows.end()) {
    return arguments.wrong(
        fmt::format("there is no such rule; choose mean, {}, or one of the robust ones with nnm+ "
                    "in front{}",
                    robust_rule_usages(), did_you_mean(name, rows, &RuleRow::name)));
  }
  if (row->is_mean()) return arguments.none();
  if (row->make_by_coordinate != nullptr) {
    FL_TRY(rule.by_coordinate, row->make_by_coordinate(arguments));
  } else {
    FL_TRY(rule.weighing, row->make_weighing(arguments));
  }
  return {};
}

}  // namespace

std::uint32_t AggregateRule::least_updates() const {
  const std::uint32_t least = is_mean() ? 1 : robust(*this).least_updates();
  return mixes ? std::max(least, 2 * mix.value_or(1) + 1) : least;
}

std::size_t AggregateRule::mix_f_of(std::size_t n) const {
  if (mix) return std::min<std::size_t>(*mix, (n - 1) / 2);
  return robust(*this).suspects_of(n);
}

Result<AggregateRule> parse_aggregate(std::string_view spec) {
  AggregateRule rule;
  const auto [front, behind] = cut(spec, '+');
  if (!behind) {
    FL_CHECK(read_rule(spec, spec, rule));
    return rule;
  }
  const auto [name, argument] = cut(front, ':');
  const RuleArguments arguments(spec, argument);
  if (name != mixing_prefix) return arguments.wrong("only nnm or nnm:F may stand before the +");
  rule.mixes = true;
  if (argument) {
    FL_TRY(rule.mix, arguments.count("f of nnm"));
  }
  FL_CHECK(read_rule(spec, *behind, rule));
  if (rule.is_mean())
    return arguments.wrong("nnm+ goes before a robust rule, for example nnm+median");
  return rule;
}

}  // namespace fl::server
