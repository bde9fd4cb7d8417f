// SPDX-License-Identifier: Apache-2.0
// The table of rules against itself and the guide, the specs of --aggregate, and how many updates
// each rule needs.
#include "server/sums/aggregate_rule.hpp"
#include "server/sums/rules/rule_table.hpp"
#include "tests/support/guide_table.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace fl::test {

using namespace fl::server;
namespace {

AggregateRule rule(std::string_view spec) { return parse_aggregate(spec).value(); }

TEST_CASE("each rule has a name and a grammar of its own, and its example is read") {
  std::set<std::string_view> names;
  for (const RuleRow& row : rule_rows()) {
    CAPTURE(row.name);
    CHECK(names.insert(row.name).second);
    CHECK(row.usage.starts_with(row.name));
    CHECK(row.example.starts_with(row.name));
    const auto parsed = parse_aggregate(row.example);
    REQUIRE(parsed);
    CHECK(parsed->is_mean() == row.is_mean());
    CHECK(parsed->is_by_coordinate() == (row.make_by_coordinate != nullptr));
    CHECK((parsed->weighing != nullptr) == (row.make_weighing != nullptr));
    const auto mixed = parse_aggregate("nnm+" + std::string(row.example));
    CHECK(mixed.has_error() == row.is_mean());
    const auto refused = parse_aggregate("nosuch").error().message();
    CHECK(refused.find(row.usage) != std::string::npos);
    CHECK((robust_rule_usages().find(row.usage) == std::string::npos) == row.is_mean());
  }
  CHECK(rule_rows().front().is_mean());
  CHECK(std::ranges::count_if(rule_rows(), &RuleRow::is_mean) == 1);
  CHECK(weighing_rule_names() == "krum, multikrum, geomedian or centered-clip");
}

TEST_CASE("the guide has the robust rules of the table, with the updates that each needs") {
  auto guide = guide_table("guide/choose-a-rule.md", "| rule |");
  REQUIRE(guide.size() == rule_rows().size());  // Instead of the mean it has nnm.
  for (std::size_t i = 1; i < rule_rows().size(); ++i) {
    const RuleRow& row = rule_rows()[i];
    CAPTURE(row.name);
    const std::string spec = quoted_in(guide[i - 1].at(0)).at(0);
    CHECK(spec.substr(0, spec.find(':')) == row.name);
    const auto least = rule(row.example).least_updates();
    const std::string& told = guide[i - 1].at(2);  // "3 updates", or "2F + 1" for an F of 1.
    const auto factor = static_cast<unsigned>(std::stoul(told));
    const std::size_t more = told.find("F + ");
    CHECK(least == factor + (more == std::string::npos ? 0 : std::stoul(told.substr(more + 4))));
  }
  CHECK(quoted_in(guide.back().at(0)).at(0) == "nnm+RULE");
}

TEST_CASE("a rule says how many updates it needs") {
  constexpr std::pair<std::string_view, std::uint32_t> table[] = {
      {"mean", 1},
      {"median", 3},
      {"trimmed:0.1", 3},
      {"trimmed:2", 5},
      {"krum", 5},
      {"krum:0", 3},
      {"krum:2", 7},
      {"multikrum:1,4", 5},
      {"multikrum:1,8", 9},
      {"geomedian", 3},
      {"centered-clip:3", 1},
      {"nnm+median", 3},
      {"nnm:3+median", 7},
      {"nnm+krum:2", 7},
      {"nnm+centered-clip:0.5", 3},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.first));
    CHECK(rule(row.first).least_updates() == row.second);
  }
}

TEST_CASE("what a rule drops follows from the number of updates") {
  CHECK(rule("trimmed:0.1").by_coordinate->dropped_of(10) == 1);
  CHECK(rule("trimmed:0.1").by_coordinate->dropped_of(11) == 2);
  CHECK(rule("trimmed:0.3").by_coordinate->dropped_of(10) == 3);
  CHECK(rule("trimmed:0.49").by_coordinate->dropped_of(3) == 1);
  CHECK(rule("trimmed:4").by_coordinate->dropped_of(9) == 4);
  CHECK(rule("trimmed:4").by_coordinate->dropped_of(5) == 2);
  CHECK(rule("krum").weighing->suspects_of(10) == 3);
  CHECK(rule("krum:1").weighing->suspects_of(10) == 1);
  CHECK(rule("krum:4").weighing->suspects_of(7) == 2);
  CHECK(rule("krum").weighing->suspects_of(1) == 0);
  CHECK(rule("nnm+krum:1").mix_f_of(10) == 1);
  CHECK(rule("nnm+trimmed:0.2").mix_f_of(10) == 2);
  CHECK(rule("nnm+geomedian").mix_f_of(10) == 4);
  CHECK(rule("nnm:2+geomedian").mix_f_of(10) == 2);
  CHECK(rule("nnm:2+geomedian").mix_f_of(1) == 0);
}

TEST_CASE("what is no rule is refused, with what would be one") {
  constexpr std::pair<std::string_view, std::string_view> table[] = {
      {"", "choose mean, median"},
      {"average", "choose mean, median"},
      {"median:3", "takes no number"},
      {"trimmed", "above 0"},
      {"trimmed:0", "above 0"},
      {"trimmed:0.5", "below 0.5"},
      {"trimmed:1.5", "whole number"},
      {"trimmed:nan", "above 0"},
      {"krum:", "whole number"},
      {"krum:-1", "whole number"},
      {"krum:1.5", "whole number"},
      {"multikrum", "f, the first number"},
      {"multikrum:1", "m, the second number"},
      {"multikrum:1,0", "m, the second number"},
      {"centered-clip", "TAU must be"},
      {"centered-clip:inf", "TAU must be"},
      {"nnm", "choose mean, median"},
      {"nnm+", "choose mean, median"},
      {"nnm+mean", "before a robust rule"},
      {"nnm+nnm+median", "choose mean, median"},
      {"nnm:x+median", "f of nnm"},
      {"median+median", "only nnm"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.first));
    const auto parsed = parse_aggregate(row.first);
    REQUIRE(parsed.has_error());
    CHECK(parsed.error().code() == Errc::invalid_input);
    CHECK(parsed.error().message().find(row.second) != std::string::npos);
  }
}

}  // namespace
}  // namespace fl::test
