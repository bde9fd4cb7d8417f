// SPDX-License-Identifier: Apache-2.0
// The specs of --aggregate, and how many updates each rule needs.
#include "server/sums/aggregate_rule.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>

namespace fl::test {
namespace {

AggregateRule rule(std::string_view spec) { return parse_aggregate(spec).value(); }

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
  CHECK(rule("trimmed:0.1").trimmed_of(10) == 1);
  CHECK(rule("trimmed:0.1").trimmed_of(11) == 2);
  CHECK(rule("trimmed:0.3").trimmed_of(10) == 3);
  CHECK(rule("trimmed:0.49").trimmed_of(3) == 1);
  CHECK(rule("trimmed:4").trimmed_of(9) == 4);
  CHECK(rule("trimmed:4").trimmed_of(5) == 2);
  CHECK(rule("krum").krum_f_of(10) == 3);
  CHECK(rule("krum:1").krum_f_of(10) == 1);
  CHECK(rule("krum:4").krum_f_of(7) == 2);
  CHECK(rule("krum").krum_f_of(1) == 0);
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
